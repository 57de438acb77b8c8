"""Anthropic's tool runner for Python: whole and streamed, into a full context and out again."""

import anthropic
from plan import CUT, DONE, MODEL, TASK, URL, check, read, weather

client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
tools = [anthropic.beta_tool(weather), anthropic.beta_tool(read)]


def run(history: list, stream: bool) -> str:
    """Go on until no tool is called; the history grows with each turn."""
    runner = client.beta.messages.tool_runner(
        model=MODEL, max_tokens=1000, tools=tools, messages=[*history], stream=stream
    )
    for turn in runner:
        message = turn.get_final_message() if stream else turn
        history.append({"role": "assistant", "content": message.content})
        results = runner.generate_tool_call_response()
        if results is not None:
            history.append(results)
    return message.content[0].text


for stream in (False, True):
    history: list = [{"role": "user", "content": TASK}]
    try:
        run(history, stream)
    except anthropic.BadRequestError as error:
        assert "prompt is too long" in error.message, error
    else:
        raise AssertionError("it fitted")
    (result,) = history[-1]["content"]
    result["content"] = CUT
    assert run(history, stream) == DONE
    check()

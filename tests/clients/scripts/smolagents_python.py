"""smolagents: its OpenAI model, whole and streamed, and a tool that must be called."""

import os

from smolagents import ChatMessage, OpenAIServerModel, tool

model = OpenAIServerModel(
    os.environ["QUIRE_MODEL"],
    api_base=os.environ["QUIRE_URL"] + "/v1",
    api_key="none",
    max_tokens=60,
)


@tool
def weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: its name
    """
    return city


messages = [ChatMessage(role="user", content=[{"type": "text", "text": "hello"}])]
assert model.generate(messages, stop_sequences=["Observation:"]).content
assert list(model.generate_stream(messages))
called = model.generate(messages, tools_to_call_from=[weather], max_tokens=300)
assert called.tool_calls[0].function.name == "weather"

"""OpenAI's client for Python: completions, chats, streams, tools, structured text, errors."""

import os
from typing import Literal

import openai
from pydantic import BaseModel

MODEL = os.environ["QUIRE_MODEL"]
client = openai.OpenAI(base_url=os.environ["QUIRE_URL"] + "/v1", api_key="none", max_retries=0)
messages = [{"role": "user", "content": "What is the weather in Paris?"}]
few = {"model": MODEL, "max_completion_tokens": 8}


class Weather(BaseModel):
    city: Literal["Paris", "Rome"]
    hot: bool


tool = openai.pydantic_function_tool(Weather, name="weather")

assert MODEL in [model.id for model in client.models.list()]
assert client.models.retrieve(MODEL).id == MODEL
assert client.completions.create(model=MODEL, prompt="Once", max_tokens=4).choices[0].text
chat = client.chat.completions.create(messages=messages, **few)
assert chat.choices[0].message.content and chat.usage.completion_tokens <= 8
stream = client.chat.completions.create(
    messages=messages, **few, stream=True, stream_options={"include_usage": True}
)
chunks = list(stream)
assert chunks[-1].usage.completion_tokens > 0
assert any(chunk.choices and chunk.choices[0].delta.content for chunk in chunks)
scored = client.chat.completions.create(messages=messages, **few, logprobs=True, top_logprobs=2)
assert len(scored.choices[0].logprobs.content[0].top_logprobs) == 2
predicted = client.chat.completions.create(
    messages=messages, **few, prediction={"type": "content", "content": "It is hot in Paris."}
)
details = predicted.usage.completion_tokens_details
assert details.accepted_prediction_tokens >= 0 and details.rejected_prediction_tokens >= 0

parsed = client.chat.completions.parse(model=MODEL, messages=messages, response_format=Weather)
assert parsed.choices[0].message.parsed.city in ("Paris", "Rome")
called = client.chat.completions.parse(
    model=MODEL, messages=messages, tools=[tool], tool_choice="required"
)
call = called.choices[0].message.tool_calls[0]
assert called.choices[0].finish_reason == "tool_calls"
assert isinstance(call.function.parsed_arguments, Weather)
history = [
    *messages,
    called.choices[0].message.model_dump(exclude_none=True, include={"role", "tool_calls"}),
    *(
        {"role": "tool", "tool_call_id": one.id, "content": "hot"}
        for one in called.choices[0].message.tool_calls
    ),
]
for one in history[1]["tool_calls"]:
    one["function"].pop("parsed_arguments", None)
assert client.chat.completions.create(messages=history, **few).choices
with client.chat.completions.stream(
    model=MODEL, messages=messages, tools=[tool], tool_choice="required"
) as events:
    final = events.get_final_completion()
assert final.choices[0].message.tool_calls[0].function.name == "weather"

for error, ask in [
    (openai.NotFoundError, {"model": "gpt-9", "messages": messages}),
    (openai.BadRequestError, {"model": MODEL, "messages": messages, "temperature": -1}),
]:
    try:
        client.chat.completions.create(**ask)
    except error as caught:
        assert caught.param
    else:
        raise AssertionError(f"no {error.__name__}")

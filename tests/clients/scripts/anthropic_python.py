"""Anthropic's client for Python: messages, streams, tools, structured text, counts, errors."""

import os
from typing import Literal

import anthropic
from pydantic import BaseModel

MODEL = os.environ["QUIRE_MODEL"]
client = anthropic.Anthropic(base_url=os.environ["QUIRE_URL"], api_key="none", max_retries=0)
few = {"model": MODEL, "max_tokens": 12, "messages": [{"role": "user", "content": "hello"}]}


class Weather(BaseModel):
    city: Literal["Paris", "Rome"]
    hot: bool


tool = {"name": "weather", "description": "of a city", "input_schema": Weather.model_json_schema()}

assert MODEL in [model.id for model in client.models.list()]
assert client.models.retrieve(MODEL).id == MODEL
message = client.messages.create(**few, system="Be brief.")
assert message.content[0].text and message.usage.output_tokens <= 12
counted = client.messages.count_tokens(
    model=MODEL, messages=few["messages"], system="Be brief."
).input_tokens
told = message.usage
assert counted == told.input_tokens + told.cache_read_input_tokens
with client.messages.stream(**few) as stream:
    text = "".join(stream.text_stream)
    assert stream.get_final_text() == text != ""
asked = {**few, "max_tokens": 200, "tools": [tool]}
called = client.messages.create(**asked, tool_choice={"type": "any"})
assert called.stop_reason == "tool_use"
calls = [block for block in called.content if block.type == "tool_use"]
Weather.model_validate(calls[0].input)
with client.messages.stream(**asked, tool_choice={"type": "tool", "name": "weather"}) as stream:
    final = stream.get_final_message()
Weather.model_validate(next(block for block in final.content if block.type == "tool_use").input)
results = [{"type": "tool_result", "tool_use_id": call.id, "content": "hot"} for call in calls]
history = [
    *few["messages"],
    {"role": "assistant", "content": called.content},
    {"role": "user", "content": results},
]
assert client.messages.create(**{**few, "messages": history}, tools=[tool]).content
parsed = client.messages.parse(**{**few, "max_tokens": 200}, output_format=Weather)
assert isinstance(parsed.parsed_output, Weather)
for error, changed in [
    (anthropic.NotFoundError, {"model": "claude-9"}),
    (anthropic.BadRequestError, {"extra_body": {"temperature": -1}}),
]:
    try:
        client.messages.create(**{**few, **changed})
    except error as caught:
        assert caught.body["type"] == "error"
    else:
        raise AssertionError(f"no {error.__name__}")

"""OpenAI's client for Python: responses, their streams, tools and conversations."""

import os
from typing import Literal

import openai
from pydantic import BaseModel

MODEL = os.environ["QUIRE_MODEL"]
client = openai.OpenAI(base_url=os.environ["QUIRE_URL"] + "/v1", api_key="none", max_retries=0)
few = {"model": MODEL, "max_output_tokens": 8}


class Weather(BaseModel):
    city: Literal["Paris", "Rome"]
    hot: bool


tool = {
    "type": "function",
    "name": "weather",
    "parameters": {**Weather.model_json_schema(), "additionalProperties": False},
    "strict": True,
}

first = client.responses.create(**few, input="Tell me a story", instructions="Be brief.")
assert first.output_text and first.usage.output_tokens <= 8
second = client.responses.create(**few, input="Go on", previous_response_id=first.id)
assert second.usage.input_tokens > first.usage.output_tokens
assert client.responses.retrieve(first.id).output_text == first.output_text
assert len(list(client.responses.input_items.list(second.id))) == 1
counted = client.responses.input_tokens.count(
    model=MODEL, input="Tell me a story", instructions="Be brief."
)
assert counted.input_tokens == first.usage.input_tokens
with client.responses.stream(**few, input="Tell me a story") as stream:
    text = "".join(one.delta for one in stream if one.type == "response.output_text.delta")
assert text
parsed = client.responses.parse(model=MODEL, input="Weather?", text_format=Weather)
assert parsed.output_parsed.city in ("Paris", "Rome")
called = client.responses.create(
    model=MODEL, input="Weather in Paris?", tools=[tool], tool_choice="required"
)
(call,) = [item for item in called.output if item.type == "function_call"][:1]
Weather.model_validate_json(call.arguments)
answers = [
    {"type": "function_call_output", "call_id": item.call_id, "output": "hot"}
    for item in called.output
    if item.type == "function_call"
]
assert client.responses.create(**few, input=answers, previous_response_id=called.id).output
with client.responses.stream(
    model=MODEL, input="Weather?", tools=[tool], tool_choice="required"
) as stream:
    list(stream)
    assert stream.get_final_response().output[-1].type == "function_call"
client.responses.delete(first.id)
try:
    client.responses.create(**few, input="Go on", previous_response_id=first.id)
except openai.NotFoundError as error:
    assert error.param == "previous_response_id"
else:
    raise AssertionError("it was deleted")

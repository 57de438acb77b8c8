"""LiteLLM, by each of the doors that it knows: OpenAI's, Anthropic's, Ollama's, vLLM's."""

import os
from typing import Literal

import litellm
from pydantic import BaseModel

URL, MODEL = os.environ["QUIRE_URL"], os.environ["QUIRE_MODEL"]
messages = [{"role": "user", "content": "What is the weather in Paris?"}]
doors = {
    "openai": URL + "/v1",
    "hosted_vllm": URL + "/v1",
    "anthropic": URL,
    "ollama": URL,
    "ollama_chat": URL,
}


class Weather(BaseModel):
    city: Literal["Paris", "Rome"]
    hot: bool


tool = {
    "type": "function",
    "function": {"name": "weather", "parameters": Weather.model_json_schema()},
}
for door, base in doors.items():
    ask = {
        "model": f"{door}/{MODEL}",
        "api_base": base,
        "api_key": "none",
        "messages": messages,
        "num_retries": 0,
    }
    answer = litellm.completion(**ask, max_tokens=12)
    assert answer.choices[0].message.content, door
    assert answer.usage.completion_tokens <= 12, door
    assert list(litellm.completion(**ask, max_tokens=12, stream=True)), door
    if door not in ("ollama", "ollama_chat"):
        called = litellm.completion(**ask, max_tokens=200, tools=[tool], tool_choice="required")
        (call, *_) = called.choices[0].message.tool_calls
        Weather.model_validate_json(call.function.arguments)
    if door != "anthropic":
        typed = litellm.completion(**ask, max_tokens=200, response_format=Weather)
        Weather.model_validate_json(typed.choices[0].message.content)
told = litellm.responses(model=f"openai/{MODEL}", input="hello", api_base=URL + "/v1",
                         api_key="none", max_output_tokens=12)  # fmt: skip
assert told.output

"""Ollama's client for Python: chats, prompts, structured text, models."""

import os
from typing import Literal

import ollama
from pydantic import BaseModel

MODEL = os.environ["QUIRE_MODEL"]
client = ollama.Client(host=os.environ["QUIRE_URL"])
messages = [{"role": "user", "content": "hello"}]
few = {"num_predict": 8, "num_ctx": 1024, "temperature": 0.5, "num_thread": 2}


class Weather(BaseModel):
    city: Literal["Paris", "Rome"]
    hot: bool


def weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: its name
    """
    return city


(listed,) = client.list().models
assert listed.model == f"{MODEL}:latest"
shown = client.show(listed.model)
family = shown.modelinfo["general.architecture"]
assert shown.modelinfo[f"{family}.context_length"] == client.ps().models[0].context_length
assert {"completion", "tools"} <= set(shown.capabilities)
answer = client.chat(listed.model, messages, options=few)
assert answer.message.content and answer.done and answer.eval_count <= 8
pieces = list(client.chat(MODEL, messages, options=few, stream=True, keep_alive="5m"))
assert "".join(piece.message.content for piece in pieces) and pieces[-1].done
assert client.chat(MODEL, messages, options=few, tools=[weather]).message
assert client.generate(MODEL, "Once upon", options=few).response
assert client.generate(MODEL, "Once upon", options=few, raw=True).response
assert list(client.generate(MODEL, "Once upon", options=few, stream=True))[-1].done
assert client.generate(MODEL).done_reason == "load"
schema = Weather.model_json_schema()
structured = client.chat(MODEL, messages, format=schema)
Weather.model_validate_json(structured.message.content)
Weather.model_validate_json(client.generate(MODEL, "weather?", format=schema).response)
try:
    client.chat("llama9", messages)
except ollama.ResponseError as error:
    assert error.status_code == 404 and "llama9" in error.error
else:
    raise AssertionError("there is no such model")

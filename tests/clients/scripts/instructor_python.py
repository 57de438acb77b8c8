"""Instructor: models from tools, from JSON schemas, and a list of them in a stream."""

import os
from typing import Literal

import instructor
import openai
from pydantic import BaseModel

MODEL = os.environ["QUIRE_MODEL"]
messages = [{"role": "user", "content": "What is the weather in Paris?"}]


class Weather(BaseModel):
    city: Literal["Paris", "Rome"]
    hot: bool


for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
    base = openai.OpenAI(base_url=os.environ["QUIRE_URL"] + "/v1", api_key="none", max_retries=0)
    client = instructor.from_openai(base, mode=mode)
    ask = {"model": MODEL, "messages": messages, "max_retries": 0}
    weather = client.chat.completions.create(response_model=Weather, **ask)
    assert isinstance(weather, Weather), mode
    partly = list(client.chat.completions.create_partial(response_model=Weather, **ask))
    assert partly[-1].city in ("Paris", "Rome"), mode

"""Pydantic AI: typed outputs by tools, by schema and by prompt, over chats and responses."""

import os
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

URL, MODEL = os.environ["QUIRE_URL"], os.environ["QUIRE_MODEL"]


class Weather(BaseModel):
    city: Literal["Paris", "Rome"]
    hot: bool


openai = OpenAIProvider(base_url=URL + "/v1", api_key="none")
claude = AnthropicModel(MODEL, provider=AnthropicProvider(base_url=URL, api_key="none"))
for kind in (OpenAIChatModel, OpenAIResponsesModel):
    model = kind(MODEL, provider=openai)
    agent = Agent(model, instructions="Be brief.", model_settings={"max_tokens": 12})
    assert agent.run_sync("hello").output
    for output in (ToolOutput(Weather), NativeOutput(Weather)):
        typed = Agent(model, output_type=output).run_sync("weather?")
        assert isinstance(typed.output, Weather) and typed.usage.output_tokens
assert Agent(claude, model_settings={"max_tokens": 12}).run_sync("hello").output
typed = Agent(claude, output_type=ToolOutput(Weather), model_settings={"max_tokens": 200})
assert isinstance(typed.run_sync("weather?").output, Weather)

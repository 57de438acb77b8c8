"""OpenAI's Agents SDK, over responses and over chats: tools, typed outputs, streams."""

import asyncio
import os
from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

set_tracing_disabled(True)
client = AsyncOpenAI(base_url=os.environ["QUIRE_URL"] + "/v1", api_key="none", max_retries=0)
heard: list[str] = []


class Weather(BaseModel):
    city: Literal["Paris", "Rome"]
    hot: bool


@function_tool
def weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather of a city."""
    heard.append(city)
    return "hot"


async def talk(model: object) -> None:
    """Over chats: the SDK takes a response that max_tokens has cut for a failure."""
    few = ModelSettings(max_tokens=12)
    plain = Agent(name="plain", instructions="Be brief.", model=model, model_settings=few)
    assert (await Runner.run(plain, "hello")).final_output
    streamed = Runner.run_streamed(plain, "hello")
    assert [event async for event in streamed.stream_events()] and streamed.final_output


async def use(model: object) -> None:
    typed = Agent(name="typed", model=model, output_type=Weather)
    assert isinstance((await Runner.run(typed, "weather?")).final_output, Weather)
    streamed = Runner.run_streamed(typed, "weather?")
    assert [event async for event in streamed.stream_events()]
    assert isinstance(streamed.final_output, Weather)
    heard.clear()
    calling = Agent(
        name="calling",
        model=model,
        tools=[weather],
        tool_use_behavior="stop_on_first_tool",
        model_settings=ModelSettings(tool_choice="required"),
    )
    assert (await Runner.run(calling, "weather?")).final_output == "hot" and heard


async def main() -> None:
    chats = OpenAIChatCompletionsModel(os.environ["QUIRE_MODEL"], client)
    responses = OpenAIResponsesModel(os.environ["QUIRE_MODEL"], client)
    await talk(chats)
    for model in (chats, responses):
        await use(model)


asyncio.run(main())

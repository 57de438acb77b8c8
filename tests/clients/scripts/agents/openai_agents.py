"""OpenAI's Agents SDK, over responses and chats: into a full context and out again."""

import asyncio

import openai
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from plan import CUT, DONE, MODEL, TASK, URL, check, read, weather

set_tracing_disabled(True)
client = openai.AsyncOpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
tools = [function_tool(weather), function_tool(read)]


async def run(agent: Agent, task: str, session: SQLiteSession, stream: bool) -> str:
    if not stream:
        return (await Runner.run(agent, task, session=session)).final_output
    running = Runner.run_streamed(agent, task, session=session)
    async for _ in running.stream_events():
        pass
    return running.final_output


async def shorten(session: SQLiteSession) -> None:
    """The session without what was long."""
    items = await session.get_items()
    for item in items:
        if len(str(item.get("output", ""))) > 1000:
            item["output"] = CUT
    await session.clear_session()
    await session.add_items(items)


async def main() -> None:
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        for stream in (False, True):
            agent = Agent(name="clerk", model=kind(MODEL, client), tools=tools)
            session = SQLiteSession("talk")
            try:
                await run(agent, TASK, session, stream)
            except openai.BadRequestError as error:
                assert error.code == "context_length_exceeded", error
            else:
                raise AssertionError("it fitted")
            await shorten(session)
            assert await run(agent, "Go on.", session, stream) == DONE
            check()


asyncio.run(main())

"""smolagents' agent, which has to call a tool each time: into a full context and out again."""

import json

from plan import CALLS, CUT, DONE, MODEL, URL, check, read, weather
from smolagents import OpenAIServerModel, ToolCallingAgent, tool
from smolagents.utils import AgentGenerationError

model = OpenAIServerModel(MODEL, api_base=URL + "/v1", api_key="none")
agent = ToolCallingAgent(tools=[tool(weather), tool(read)], model=model, verbosity_level=0)
try:
    agent.run("DO " + json.dumps([*CALLS, ["final_answer", {"answer": DONE}]]))
except AgentGenerationError as error:
    assert "context_length_exceeded" in str(error), error
else:
    raise AssertionError("it fitted")
for step in agent.memory.steps:
    if len(getattr(step, "observations", None) or "") > 1000:
        step.observations = CUT
assert agent.run("Go on.", reset=False) == DONE
check()

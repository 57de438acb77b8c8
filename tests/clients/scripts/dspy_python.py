"""DSPy: a plain prompt, and a typed signature by its JSON adapter.

It knows of no model of its own name that keeps to schemas, so the schema is given to it.
"""

import os
from typing import Literal

import dspy

lm = dspy.LM(
    "openai/" + os.environ["QUIRE_MODEL"],
    api_base=os.environ["QUIRE_URL"] + "/v1",
    api_key="none",
    max_tokens=200,
    cache=False,
    num_retries=0,
)
assert lm("hello")
dspy.configure(lm=lm, adapter=dspy.JSONAdapter())


class Weather(dspy.Signature):
    question: str = dspy.InputField()
    city: Literal["Paris", "Rome"] = dspy.OutputField()
    hot: bool = dspy.OutputField()


schema = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "hot": {"type": "boolean"}},
    "required": ["city", "hot"],
    "additionalProperties": False,
}
asked = {"type": "json_schema", "json_schema": {"name": "weather", "schema": schema}}
weather = dspy.Predict(Weather, response_format=asked)(question="weather?")
assert weather.city in ("Paris", "Rome") and isinstance(weather.hot, bool)

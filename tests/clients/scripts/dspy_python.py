"""DSPy: a typed signature, which its JSON adapter asks for by schema."""

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


weather = dspy.Predict(Weather)(question="weather?")
assert weather.city in ("Paris", "Rome") and isinstance(weather.hot, bool)

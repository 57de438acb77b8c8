"""Small tasks whose answers are known: whether a form still does what its model can do.

Each is a text to be continued, with examples before the question, so that base models and chat
models read it alike. Answers are greedy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from quire.text.params import SamplingParams, StructuredOutputs

_WORDS = (
    "river", "stone", "cloud", "paper", "green", "winter", "bread", "lamp", "garden", "silver",
    "music", "bridge", "apple", "letter", "window", "mountain", "doctor", "yellow", "summer",
)  # fmt: skip
_NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Ida", "Jonas")
_CITIES = ("Paris", "Rome", "Oslo", "Lima", "Cairo", "Delhi", "Quito", "Tokyo")
_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "city": {"type": "string"},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
_SHOTS = 4
NEEDLES = (2048, 8192)  # tokens of the text around one


class Task(NamedTuple):
    """A text to be continued. schema: the answer is JSON that follows it."""

    prompt: str
    answer: Any
    schema: Mapping[str, Any] | None = None

    def params(self) -> SamplingParams:
        outputs = None if self.schema is None else StructuredOutputs(json=dict(self.schema))
        return SamplingParams(
            temperature=0, max_tokens=40, stop=() if outputs else "\n",
            structured_outputs=outputs,
        )  # fmt: skip

    def is_right(self, text: str) -> bool:
        if self.schema is None:
            return bool(text.strip() == self.answer)
        try:
            return bool(json.loads(text) == self.answer)
        except ValueError:
            return False


def questions(count: int, seed: int = 0) -> dict[str, list[Task]]:
    """By task, ``count`` of each; the same for every model."""
    random = Random(seed)
    makers = {"copy": _copy, "sort": _sort, "arithmetic": _sum, "JSON": _person}
    return {task: [make(random) for _ in range(count)] for task, make in makers.items()}


def needle(filler: Sequence[str], seed: int) -> Task:
    """One sentence to be found again among those of ``filler``."""
    random = Random(seed)
    number, city = str(random.randrange(10_000, 99_999)), random.choice(_CITIES)
    place = random.randrange(len(filler) + 1)
    fact = f"The secret number of {city} is {number}."
    text = " ".join([*filler[:place], fact, *filler[place:]])
    question = f"Question: What is the secret number of {city}?"
    return Task(f"{text}\n\n{question}\nAnswer: The secret number of {city} is", f"{number}.")


def _lines(pairs: Sequence[tuple[str, str]]) -> Task:
    *shots, (question, answer) = pairs
    text = "".join(f"{asked} {answered}\n" for asked, answered in shots)
    return Task(text + question, answer)


def _copy(random: Random) -> Task:
    drawn = random.sample(_WORDS, 4 * _SHOTS)  # none twice, so that nothing else goes on with it
    samples = [" ".join(drawn[i::_SHOTS]) for i in range(_SHOTS)]
    return _lines([(f"Text: {words}\nCopy:", words) for words in samples])


def _sort(random: Random) -> Task:
    pairs = []
    for _ in range(_SHOTS):
        numbers = random.sample(range(10, 100), 5)
        joined, right = (", ".join(map(str, some)) for some in (numbers, sorted(numbers)))
        pairs.append((f"Numbers: {joined}\nSorted:", right))
    return _lines(pairs)


def _sum(random: Random) -> Task:
    pairs = []
    for _ in range(_SHOTS):
        first, second = random.randrange(10, 60), random.randrange(10, 40)
        pairs.append((f"{first} + {second} =", str(first + second)))
    return _lines(pairs)


def _person(random: Random) -> Task:
    shots = []
    for _ in range(_SHOTS):
        who = {"name": random.choice(_NAMES), "age": random.randrange(18, 80),
               "city": random.choice(_CITIES)}  # fmt: skip
        shots.append((f"{who['name']} is {who['age']} years old and lives in {who['city']}.", who))
    *before, (sentence, answer) = shots
    text = "".join(f"Text: {said}\nJSON: {json.dumps(facts)}\n" for said, facts in before)
    return Task(f"{text}Text: {sentence}\nJSON:", answer, _PERSON)

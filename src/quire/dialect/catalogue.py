"""The dialects there are, by name, and how a model's own is found in its chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quire.dialect import hermes
from quire.dialect.parser import CallForm, Marks


@dataclass(frozen=True)
class Dialect:
    """How a family of models writes calls.

    signs: texts of which a chat template holds all, where its model speaks so.
    marks: of its calls; where they are special tokens, they must not be left out of the text.
    id_length: characters of a call's id, where its chat template insists.
    """

    name: str
    form: CallForm
    signs: tuple[str, ...]
    marks: tuple[str, ...]
    id_length: int | None = None


HERMES = Dialect(
    name="hermes",
    form=CallForm((hermes.OPENS,), hermes.read),
    signs=(hermes.OPENS,),
    marks=(hermes.OPENS, hermes.CLOSES),
)

# Of two whose signs a template holds, the first counts.
DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (HERMES,)}
REASONING: Mapping[str, Marks] = {
    "think": Marks("<think>", "</think>"),
    "mistral": Marks("[THINK]", "[/THINK]"),
}


def dialect_of(template: str) -> Dialect | None:
    """The dialect that a chat template teaches; None if it is none of ours."""
    for dialect in DIALECTS.values():
        if all(sign in template for sign in dialect.signs):
            return dialect
    return None


def marks_of(template: str) -> Marks | None:
    """The marks of reasoning that a chat template knows."""
    for marks in REASONING.values():
        if marks.end in template:
            return marks
    return None

"""The dialects there are, by name, and how a model's own is found in its chat template."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from quire.text.dialect import harmony, json_calls, marked, one_by_one, pythonic
from quire.text.dialect.grammar import Frame, Spell, Writing
from quire.text.dialect.reader import CallForm, EventParser, Marks, Tools


class OrderGrammar(Protocol):
    """A grammar for the order of an output's parts; see ``harmony.Channels.order``."""

    def __call__(self, spell: Spell, any_token: str, most: int | None, *, amid: bool) -> str: ...


@dataclass(frozen=True)
class Dialect:
    """How a family of models writes calls.

    names: vLLM's for it; the first is ours.
    sign: a text in the chat templates of its models.
    marks: of its calls; if they are special tokens, they must not be skipped.
    id_length: characters of a call's id, if its chat template insists.
    old_writing: of chat templates without ``new_sign``.
    parser: of a format that orders the whole output, not only its calls; it gets the prompt's part
        of the output.
    order: of such a format, see ``harmony.Channels.order``.
    """

    names: tuple[str, ...]
    form: CallForm | None
    writing: Writing
    sign: str
    marks: tuple[str, ...]
    id_length: int | None = None
    old_writing: Writing | None = None
    new_sign: str = ""
    parser: Callable[[Tools | None, str], EventParser] | None = None
    order: OrderGrammar | None = None

    def writing_in(self, template: str) -> Writing:
        if self.old_writing is not None and self.new_sign not in template:
            return self.old_writing
        return self.writing


def _tagged(
    names: tuple[str, ...],
    opens: str,
    closes: str,
    frame: Callable[[str, str], Frame],
    sign: str = "",
) -> Dialect:
    marks = tuple(mark for mark in (opens, closes) if mark)
    form = json_calls.tagged_form(opens, closes)
    return Dialect(names, form, frame(opens, closes), sign or opens, marks)


def _xml(names: tuple[str, ...], manner: one_by_one.Manner, sign: str) -> Dialect:
    form = CallForm((manner.opens, one_by_one.FUNCTION), manner.read)
    return Dialect(names, form, manner.frame, sign, manner.marks)


# Of those whose sign a template holds, the first counts.
_ALL = (
    Dialect(
        ("openai", "harmony", "gpt_oss"),
        form=None,
        writing=harmony.Channels(),
        sign="<|channel|>analysis",
        marks=harmony.MARKS,
        parser=harmony.parser,
        order=harmony.Channels().order,
    ),
    Dialect(
        ("deepseek_v31", "deepseek_v3", "deepseek_r1"),
        CallForm((marked.DEEPSEEK.opens, marked.DEEPSEEK.call), marked.DEEPSEEK.read),
        marked.FENCED_FRAME,
        sign=marked.DEEPSEEK.opens,
        marks=marked.DEEPSEEK.marks,
        old_writing=marked.DEEPSEEK_FRAME,
        new_sign=marked.FENCE,
    ),
    Dialect(
        ("kimi_k2",),
        CallForm((marked.KIMI.opens, marked.KIMI.call), marked.KIMI.read),
        marked.KIMI_FRAME,
        sign=marked.KIMI.opens,
        marks=marked.KIMI.marks,
    ),
    Dialect(
        ("glm45", "glm47"),
        CallForm((one_by_one.GLM_OPENS,), one_by_one.read_glm),
        one_by_one.GLM_FRAME,
        sign=one_by_one.GLM_KEY,
        marks=(one_by_one.GLM_OPENS, one_by_one.GLM_CLOSES),
    ),
    _xml(("seed_oss",), one_by_one.SEED, one_by_one.SEED.opens),
    _xml(("qwen3_xml", "qwen3_coder"), one_by_one.QWEN, one_by_one.PARAMETER),
    _tagged(
        ("minimax", "minimax_m1"),
        "<tool_calls>",
        "</tool_calls>",
        json_calls.in_lines,
        sign='<tool_calls>\\n{"name"',
    ),
    _tagged(("jamba",), "<tool_calls>", "</tool_calls>", json_calls.listed),
    _tagged(
        ("hermes", "qwen2_5", "qwen3", "smollm3"),
        "<tool_call>",
        "</tool_call>",
        json_calls.each_marked,
    ),
    _tagged(("nemotron",), "<TOOLCALL>", "</TOOLCALL>", json_calls.listed),
    _tagged(
        ("cohere_command3", "cohere_command4"),
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        json_calls.numbered,
    ),
    _tagged(("granite",), "<|tool_call|>", "", json_calls.listed),
    Dialect(
        ("mistral",),
        CallForm((json_calls.MISTRAL_OPENS,), json_calls.read_mistral),
        json_calls.MISTRAL_FRAME,
        sign=json_calls.MISTRAL_OPENS,
        marks=(json_calls.MISTRAL_OPENS, json_calls.MISTRAL_NUMBERED, json_calls.MISTRAL_ARGUMENTS),
        id_length=9,
        old_writing=json_calls.MISTRAL_LIST_FRAME,
        new_sign=json_calls.MISTRAL_ARGUMENTS,
    ),
    Dialect(
        ("pythonic", "llama4_pythonic"),
        CallForm((pythonic.OPENS,), pythonic.read, bare=True),
        pythonic.FRAME,
        sign="func_name1(",
        marks=(pythonic.OPENS, pythonic.CLOSES),
    ),
    Dialect(
        ("llama3_json", "llama4_json"),
        CallForm((json_calls.LLAMA_MARK,), json_calls.read_llama, bare=True),
        json_calls.LLAMA_FRAME,
        sign='"parameters": ',
        marks=(json_calls.LLAMA_MARK,),
    ),
)
DIALECTS: Mapping[str, Dialect] = {name: dialect for dialect in _ALL for name in dialect.names}

# What holds one of these speaks in none of the dialects, whatever else it holds.
_FOREIGN = ("]<]minimax[>[", "<atem:invoke", '"tool_name": title of the tool')

_THINK = Marks("<think>", "</think>")
_MISTRAL = Marks("[THINK]", "[/THINK]")
_COHERE = Marks("<|START_THINKING|>", "<|END_THINKING|>")
_SEED = Marks("<seed:think>", "</seed:think>")
REASONING: Mapping[str, Marks] = {
    "qwen3": _THINK,
    "deepseek_r1": Marks("<think>", "</think>", implied=True),
    "glm45": _THINK,
    "olmo3": _THINK,
    "kimi_k2": _THINK,
    "deepseek_v3": _THINK,
    "mistral": _MISTRAL,
    "cohere_command3": _COHERE,
    "seed_oss": _SEED,
    "openai_gptoss": harmony.REASONING,
}


def dialect_of(template: str) -> Dialect | None:
    """The dialect that a chat template teaches; None: not one of ours."""
    if any(sign in template for sign in _FOREIGN):
        return None
    return next((dialect for dialect in _ALL if dialect.sign in template), None)


def marks_of(template: str) -> Marks | None:
    """The marks of reasoning that a chat template knows."""
    for marks in (harmony.REASONING, _THINK, _MISTRAL, _COHERE, _SEED):
        if marks.end in template:
            return marks
    return None

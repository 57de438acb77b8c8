"""The dialects there are, by name; how a model's own is found: ``proof``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from quire.text.dialect import channels, harmony, invoked, json_calls, marked, notation, pythonic
from quire.text.dialect.grammar import Frame, Spell, Writing
from quire.text.dialect.invoked import Manner
from quire.text.dialect.made_form import MadeForm
from quire.text.dialect.reader import CallForm, EventParser, Marks, Tools


class OrderGrammar(Protocol):
    """A grammar for the order of an output's parts; see ``harmony.Channels.order``."""

    def __call__(self, spell: Spell, any_token: str, most: int | None, *, amid: bool) -> str: ...


@dataclass(frozen=True)
class Dialect:
    """How a family of models writes calls.

    names: vLLM's for it; the first is ours. None: it is made from a template.
    sign: a text in the chat templates of its models, by which it is tried first.
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


def _invoked(names: tuple[str, ...], manner: Manner, sign: str = "") -> Dialect:
    return Dialect(names, manner.form, manner.frame, sign or manner.opens, manner.marks)


def made(shown: MadeForm, names: tuple[str, ...] = (), sign: str = "") -> Dialect:
    return Dialect(names, shown.form, shown.frame, sign, shown.marks)


APERTUS = MadeForm('{"', '": ', "}", ", ", "<|tools_prefix|>[", "]<|tools_suffix|>")

# Of those that read what a template writes, one whose sign it holds comes before others.
ALL = (
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
        marked.DEEPSEEK.form,
        marked.FENCED_FRAME,
        sign=marked.DEEPSEEK.opens,
        marks=marked.DEEPSEEK.marks,
        old_writing=marked.DEEPSEEK_FRAME,
        new_sign=marked.FENCE,
    ),
    Dialect(
        ("kimi_k2",),
        marked.KIMI.form,
        marked.KIMI_FRAME,
        sign=marked.KIMI.opens,
        marks=marked.KIMI.marks,
    ),
    _invoked(("hunyuan_v3",), invoked.HUNYUAN),
    _invoked(("glm45", "glm47"), invoked.GLM, "<arg_key>"),
    _invoked(("minimax_m2",), invoked.MINIMAX),
    _invoked(("deepseek_v32",), invoked.DEEPSEEK_32),
    _invoked(("deepseek_v4",), invoked.DEEPSEEK_4),
    _invoked(("minicpm5",), invoked.MINICPM, invoked.MINICPM.call),
    Dialect(
        ("kimi_k3",),
        channels.KIMI_3.form,
        invoked.KIMI_3.frame,
        sign="<|open|>",
        marks=invoked.KIMI_3_MARKS,
        parser=channels.KIMI_3.parser,
    ),
    Dialect(
        ("muse",),
        channels.MUSE.form,
        channels.MUSE_FRAME,
        sign=invoked.MUSE.opens,
        marks=channels.MUSE_MARKS,
        parser=channels.MUSE.parser,
    ),
    Dialect(
        ("functionary_v3",),
        channels.FUNCTIONARY.form,
        channels.FUNCTIONARY_FRAME,
        sign=channels.RECIPIENT,
        marks=(),
        parser=channels.FUNCTIONARY.parser,
    ),
    Dialect(
        ("gemma4",),
        CallForm((notation.GEMMA_OPENS,), notation.read_gemma),
        notation.GEMMA_FRAME,
        sign=notation.GEMMA_OPENS,
        marks=notation.GEMMA_MARKS,
    ),
    Dialect(
        ("lfm2",),
        CallForm(
            (pythonic.LFM_OPENS,),
            partial(pythonic.read, opens=pythonic.LFM_OPENS, closes=pythonic.LFM_CLOSES),
        ),
        pythonic.LFM_FRAME,
        sign="List of tools: ",
        marks=(pythonic.LFM_OPENS, pythonic.LFM_CLOSES),
    ),
    made(APERTUS, ("apertus",), "<|tools_prefix|>"),
    _invoked(("seed_oss",), invoked.SEED),
    _invoked(("qwen3_xml", "qwen3_coder"), invoked.QWEN, "<parameter="),
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
DIALECTS: Mapping[str, Dialect] = {name: dialect for dialect in ALL for name in dialect.names}

_THINK = Marks("<think>", "</think>")
_MISTRAL = Marks("[THINK]", "[/THINK]")
_COHERE = Marks("<|START_THINKING|>", "<|END_THINKING|>")
_SEED = Marks("<seed:think>", "</seed:think>")
_MINIMAX = Marks("<mm:think>", "</mm:think>")
_HUNYUAN = Marks("<think:opensource>", "</think:opensource>")
_GEMMA = Marks("<|channel>thought", "<channel|>")
_APRIEL = Marks("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]")
_SOLAR = Marks("<|think|>", "<|end|><|begin|>assistant")
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
    "minimax_m2": _THINK,
    "minimax_m3": _MINIMAX,
    "hunyuan_v3": _HUNYUAN,
    "gemma4": _GEMMA,
    "apriel": _APRIEL,
    "kimi_k3": channels.KIMI_3_REASONING,
    "muse": channels.MUSE_REASONING,
    "solar": _SOLAR,
}

"""The law of round trips over the chat templates that makers of models publish.

A history goes through a template and is read by the template's dialect: its calls come back letter
by letter. And what the template has written, a model that must call can write.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from llguidance import LLMatcher, LLTokenizer
from references.packages import Unreachable, published_templates

import quire
from quire.core.errors import RequestError
from quire.http.chats.conversation import for_template
from quire.text.chat_template import ChatTemplate
from quire.text.dialect import Dialect, OutputParser, Wanted
from quire.text.dialect.reader import Reply
from support.dialects_in_templates import dialect_in

# -- what arguments may be ---------------------------------------------------------------------

TEXT = {"type": "string"}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": TEXT,
        "perhaps": {"anyOf": [TEXT, {"type": "null"}]},
        "listed": {"type": ["string", "null"]},
        "named": {"$ref": "#/$defs/Text"},
        "either": {"anyOf": [{"type": "integer"}, {"type": "array"}, {"type": "boolean"}, TEXT]},
        "integer": {"type": "integer"},
        "number": {"type": "number"},
        "flag": {"type": "boolean"},
        "count": {"type": ["integer", "null"]},
        "list": {"type": "array"},
        "object": {"type": "object"},
    },
    "$defs": {"Text": TEXT},
}
TEXTS = [
    '"""Doc."""', "'x'", '"x"', "'", '"', "", " ", "\n", "a\nb", "\nx\n", "\n\n", "  x  ", "\t",
    "\\", "C:\\dir\\new", "\\n", "é 👍🏽 中", "\u2028\x01\x7f", "\r\n", "x" * 90 + " " * 90 + "\n",
    "1", "01", "1.0", "1e5", "-0", "+1", "12345678901234567890", "true", "True", "null", "None",
    "[1]", " [1]", '{"a": 1}', "{'a': 1}", "NaN", "f(a=1)", "{{ x }}", "{% raw %}", "&lt;b&gt;",
    "<tool_call>", "</tool_call>", "<parameter=x>", "\n<parameter=x>\n1\n</parameter>\n",
    "</parameter>", "a</parameter>\nb", "</function>", "</function>\n</tool_call>",
    "<function=f>", "<arg_key>", "<arg_value>", "</arg_value>", "</arg_value>\nx",
    "[TOOL_CALLS]", "[ARGS]", "[/INST]", "```json", "\n```", "<|python_tag|>", "; {", "}}", "])",
    "</think>", "<think>", "<|tool_call_end|>", "<|im_end|>", "]</TOOLCALL>", "<|call|>",
    'def f():\n    """Doc."""\n    return \'x\' or "\\n"\n',
]  # fmt: skip
VALUES: dict[str, list[Any]] = {
    "integer": [0, -1, 2**53 + 1, -(2**63), 10**25],
    "number": [0.5, -1.0, 1e-7, 1e300, 5, 2**60 + 1],
    "flag": [True, False],
    "count": [None, 7],
    "list": [[], [1, "a", None, True, [{}]], ["it's", '"', "\n\\", "é"], [2**60 + 1, 0.5, "1"]],
    "object": [{}, {"a": {"b": [1, {"c": "x\ny"}]}}, {"k'\"": "'v'", "": ""}],
}
ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"perhaps": None},
    {"listed": None},
    *({"either": value} for value in (7, [1, "x"], True)),
    *(dict.fromkeys(("text", "perhaps", "listed", "named", "either"), text) for text in TEXTS),
    *({name: value} for name, values in VALUES.items() for value in values),
    {"text": "a", "perhaps": "'x'", "integer": 1, "flag": True, "list": ["x"], "object": {"y": 1}},
]

# Templates that write no call of a history, or none at all.
WRITES_NO_CALLS = {
    "ibm-granite-granite-3.3-2B-Instruct": "it leaves the calls of a history out",
    "LFM2-8B-A1B": "it leaves the calls of a history out",
    "LFM2.5-Instruct": "it leaves the calls of a history out",
}
# Where texts stand without quotes, one that looks like another of its types is written like that.
_LOOKS = {("either", "1"), ("either", "12345678901234567890"), ("either", "[1]")}
IN_PYTHON = {*_LOOKS, ("perhaps", "None"), ("listed", "None"), ("either", "True")}
IN_JSON = {*_LOOKS, ("perhaps", "null"), ("listed", "null"), ("either", "true")}
LOST = {
    **dict.fromkeys(("qwen3_xml", "seed_oss", "minicpm5"), IN_PYTHON),
    **dict.fromkeys(("glm45", "hunyuan_v3", "minimax_m2", "muse"), IN_JSON),
}
ENDS_IN_A_MARK = {"GigaChat3-10B-A1.8B", "Kimi-K3"}  # of its calls, after every answer
# Texts that a template changes itself.
CHANGED = {
    "CohereForAI-c4ai-command-r-plus-tool_use": re.compile("\u2028"),  # it indents what follows
    "LFM2.5-8B-A1B": re.compile(r"['\\\n\r]"),  # it quotes them, and escapes nothing
}
# What the grammar asks for otherwise than the template writes it, and reads as well.
WRITTEN_OTHERWISE = {
    "CohereForAI-c4ai-command-r-plus-tool_use": "the template indents JSON far",
    "openbmb-MiniCPM5-1B": "lists and objects are Python's in the template, JSON in the grammar",
    "ByteDance-Seed-OSS": "lists and objects are Python's in the template, JSON in the grammar",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "the template forgets to end a single call",
    "LFM2.5-8B-A1B": "texts are in single quotes in the template",
    "google-gemma-4-31B-it": "the template sorts arguments",
    "google-gemma-4-31B-it-interleaved": "the template sorts arguments",
}


# -- through a template and back ---------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """A published template, and the dialect that it teaches."""

    name: str
    template: str
    dialect: Dialect
    rendering: ChatTemplate

    @classmethod
    def of(cls, name: str, template: str) -> Model | None:
        dialect = dialect_in(template)
        tokens = {"bos_token": "<s>", "eos_token": "</s>"}
        return dialect and cls(name, template, dialect, ChatTemplate(template, tokens))

    def wrote(self, arguments: dict[str, Any]) -> str:
        """The assistant's turn as the template writes it, without what stands before it."""
        function = {"name": "f", "arguments": json.dumps(arguments)}
        call = {"id": "call12345", "type": "function", "function": function}
        said = {"role": "assistant", "content": None, "tool_calls": [call]}
        return self._after_user(said).removeprefix(self._after_user())

    def read(self, text: str) -> list[Any]:
        tools, dialect = {"f": SCHEMA}, self.dialect
        parser = dialect.parser(tools) if dialect.parser else OutputParser(dialect.form, tools)
        calls = Reply.of(parser.parse(text)).calls
        return [json.loads(call.arguments) for call in calls if call.cut is None]

    def _after_user(self, *said: dict[str, Any]) -> str:
        user = {"role": "user", "content": "USER"}
        parameters = {"type": "object", "properties": {}}
        function = {"name": "f", "description": "d", "parameters": parameters}
        variables = {
            "tools": [{"type": "function", "function": function}],
            "add_generation_prompt": not said,
        }
        messages = for_template([user, *said], self.dialect.id_length, self.template)
        return self.rendering.render(messages, variables, 1e6).rpartition("USER")[2]


def templates() -> dict[str, str]:
    try:
        return published_templates()
    except Unreachable:
        return {}


TEMPLATES = templates()
if not TEMPLATES:
    pytestmark = pytest.mark.skip("the published templates cannot be fetched")


@cache
def model_of(name: str) -> Model | None:
    return Model.of(name, TEMPLATES[name])


def all_models() -> list[Model]:
    return [model for name in TEMPLATES if (model := model_of(name)) is not None]


@pytest.fixture(params=sorted(TEMPLATES))
def model(request: pytest.FixtureRequest) -> Model:
    made = model_of(request.param)
    if made is None:
        pytest.skip("it teaches no dialect")
    return made


def test_enough_templates_are_read() -> None:
    assert len(all_models()) >= 63
    families = {name for model in all_models() for name in model.dialect.names[:1]}
    assert {"hermes", "qwen3_xml", "glm45", "mistral", "llama3_json", "openai"} <= families


def test_arguments_come_back_letter_by_letter(model: Model) -> None:
    if model.name in WRITES_NO_CALLS:
        with pytest.raises((RequestError, AssertionError)):
            assert model.read(model.wrote({})) == [{}]
        return
    lost = LOST.get(model.dialect.names[0], set()) if model.dialect.names else set()
    changed_texts = CHANGED.get(model.name)
    for arguments in ARGUMENTS:
        texts = (value for value in arguments.values() if isinstance(value, str))
        if changed_texts is not None and any(map(changed_texts.search, texts)):
            continue
        text = model.wrote(arguments)
        (back,) = model.read(text)
        known = {name for name, value in arguments.items() if _is_among(lost, name, value)}
        changed = {name: back[name] for name in known if back[name] != arguments[name]}
        assert changed.keys() == known and model.wrote(back) == text, "it is not lost"
        kept = {**back, **{name: arguments[name] for name in known}}
        ordered = model.dialect.names[:1] != ("gemma4",)  # whose templates sort keys
        assert _spelled(kept, sort_keys=not ordered) == _spelled(
            arguments, sort_keys=not ordered
        ), text


def _spelled(arguments: dict[str, Any], *, sort_keys: bool) -> str:
    return json.dumps(arguments, sort_keys=sort_keys)


def _is_among(lost: set[tuple[str, str]], name: str, value: object) -> bool:
    return isinstance(value, str) and (name, value) in lost


# -- what a model that must call is made to write ----------------------------------------------

_DEMO = str(Path(quire.__file__).parent / "models/demo" / "tokenizer.json")
TOKENIZER = tokenizers.Tokenizer.from_file(_DEMO)
GUIDE = LLTokenizer(TOKENIZER.to_str())
OBEYING = [
    {"text": "a\nb </function> <tool_call>", "perhaps": "'x'", "flag": True, "list": ["x", 1]},
    {"text": "", "perhaps": None, "integer": 5, "number": 0.5, "object": {"a": [None]}},
    {"perhaps": '"""Doc."""', "either": "x", "flag": False, "count": None},
    {},
]


def test_the_grammar_asks_for_what_the_template_writes(model: Model) -> None:
    if model.name in {*WRITES_NO_CALLS, *WRITTEN_OTHERWISE}:
        return
    wanted = Wanted({"f": SCHEMA}, json.dumps, several=False)
    grammar = LLMatcher.grammar_from_lark(model.dialect.writing_in(model.template).grammar(wanted))
    for arguments in OBEYING:
        text = model.wrote(arguments)
        if model.dialect.form is not None and not model.dialect.writing.bare:
            text = text[text.index(model.dialect.form.opens[0]) :]
        matcher = LLMatcher(GUIDE, grammar, log_level=0)
        tokens = [id for char in text for id in TOKENIZER.encode(char).ids]
        taken = matcher.try_consume_tokens(tokens)
        written = TOKENIZER.decode(tokens[:taken], skip_special_tokens=False)
        assert matcher.is_accepting(), (written, text[len(written) :])
        assert model.read(written) == [arguments], "a call is asked for, and not all of it"
        if model.name not in ENDS_IN_A_MARK:
            assert not any(mark in text[len(written) :] for mark in model.dialect.marks)


# -- templates that are none of a dialect's ----------------------------------------------------


def test_a_template_of_another_format_is_taken_for_none_of_ours() -> None:
    templates = published_templates()
    assert dialect_in(templates["MiniMax-M3"]) is None


FAMILIES = {
    "openai": "gpt-oss",
    "deepseek_v31": "DeepSeek-V3.1 R1-Distill deepseek-r1",
    "kimi_k2": "Kimi-K2",
    "hunyuan_v3": "Hy3",
    "glm45": "GLM-4 Spark2.5 ling-3 Laguna",
    "minimax_m2": "MiniMax-M2",
    "deepseek_v32": "DeepSeek-V3.2",
    "deepseek_v4": "DeepSeek-V4",
    "minicpm5": "MiniCPM5",
    "kimi_k3": "Kimi-K3",
    "muse": "muse",
    "functionary_v3": "functionary-medium-v3.2",
    "gemma4": "gemma-4",
    "lfm2": "LFM2",
    "apertus": "Apertus",
    "seed_oss": "Seed-OSS",
    "qwen3_xml": "Qwen3-Coder Qwen3.5 Nemotron-3 StepFun",
    "minimax": "MiniMax-M1",
    "jamba": "Apriel",
    "hermes": "Bielik MiMo Hermes QwQ Qwen2.5 Qwen3-0.6B Reka granite-4",
    "nemotron": "Nemotron-Nano-v2",
    "cohere_command3": "Cohere2MoE command-r7b",
    "granite": "granite-3.3",
    "mistral": "Mistral Ministral Devstral",
    "llama3_json": "meta-llama",
    "": "command-r-plus GigaChat functionary-medium-v3.1 Solar",  # made from what they write
}
NO_DIALECT = "SmolLM3 MiniMax-M3 firefunction gemma-2 rwkv Phi-3.5"


def _is_of(name: str, families: str) -> bool:
    return any(family in name for family in families.split())


def test_every_template_has_its_family_s_dialect() -> None:
    read = {model.name: (model.dialect.names or ("",))[0] for model in all_models()}
    for name in TEMPLATES:
        if _is_of(name, NO_DIALECT):
            assert name not in read
        else:
            assert _is_of(name, FAMILIES[read[name]]), (name, read[name])
    assert len(read.keys() - WRITES_NO_CALLS.keys()) >= 60, "are proven by what they write"

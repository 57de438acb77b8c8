"""What models write, by each dialect's published examples, and what is none of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.text.dialect import (
    DIALECTS,
    REASONING,
    CallArguments,
    CallBegun,
    CallEnded,
    ContentPiece,
    OutputParser,
    ParserState,
    Reply,
)
from support.dialects_in_templates import dialect_in, marks_in

TOOLS: dict[str, Any] = {
    "get_current_temperature": {
        "type": "object",
        "properties": {
            "location": {"type": "string"},
            "days": {"type": ["integer", "null"]},
            "exact": {"type": "boolean"},
            "points": {"type": "array"},
            "unit": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
    },
    "get_time": {},
}
THINK = REASONING["qwen3"]


def parse(name: str, text: str, *, reasons: bool = False, marks: bool = False) -> Reply:
    parser = OutputParser(
        DIALECTS[name].form, TOOLS, THINK if marks else None, ParserState(reasons)
    )
    return Reply.of(parser.parse(text))


def calls(reply: Reply) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in reply.calls]


PARIS = ("get_current_temperature", {"location": "Paris, France"})
CALL = '{"name": "get_current_temperature", "arguments": {"location": "Paris, France"}}'
PARAMETERS = CALL.replace("arguments", "parameters")
XML = """<tool_call>
<function=get_current_temperature>
<parameter=location>
Paris, France
</parameter>
</function>
</tool_call>"""

GLM = """<tool_call>get_current_temperature
<arg_key>location</arg_key>
<arg_value>Paris, France</arg_value>
<arg_key>days</arg_key>
<arg_value>3</arg_value>
</tool_call>"""
DEEPSEEK = (
    "<｜tool▁call▁begin｜>get_current_temperature<｜tool▁sep｜>"
    '{"location": "Paris, France"}<｜tool▁call▁end｜>'
)
FENCED = (
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_current_temperature\n```json\n"
    '{"location": "Paris, France"}\n```<｜tool▁call▁end｜>'
)
KIMI = (
    "<|tool_call_begin|>functions.get_current_temperature:0<|tool_call_argument_begin|>"
    '{"location": "Paris, France"}<|tool_call_end|>'
)

EXAMPLES = [
    ("glm45", f"I look.\n{GLM}\n{GLM}", "I look.", [(PARIS[0], {**PARIS[1], "days": 3})] * 2),
    ("glm45", GLM.replace("\n", ""), "", [(PARIS[0], {**PARIS[1], "days": 3})]),
    ("glm45", "<tool_call>get_time\n</tool_call>", "", [("get_time", {})]),
    ("glm45", "<tool_call>{}</tool_call>", "<tool_call>{}</tool_call>", []),
    (
        "deepseek_v31",
        f"So.<｜tool▁calls▁begin｜>{DEEPSEEK}{DEEPSEEK}<｜tool▁calls▁end｜>",
        "So.",
        [PARIS] * 2,
    ),
    (
        "deepseek_v3",
        f"<｜tool▁calls▁begin｜>{FENCED}\n{FENCED}<｜tool▁calls▁end｜>",
        "",
        [PARIS] * 2,
    ),
    ("deepseek_v3", FENCED, "", [PARIS]),  # some leave the section out
    ("deepseek_v3", "<｜tool▁calls▁begin｜>no", "<｜tool▁calls▁begin｜>no", []),
    (
        "kimi_k2",
        f"<|tool_calls_section_begin|>{KIMI}{KIMI}<|tool_calls_section_end|>",
        "",
        [PARIS] * 2,
    ),
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", "", [PARIS]),
    ("hermes", f"Sure.\n<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", "Sure.", 2),
    ("hermes", f"<tool_call>\n{CALL}\n", "", [PARIS]),  # some stop without the mark
    ("hermes", f"<tool_call>\n{CALL[:-1]}\n</tool_call>", "", [PARIS]),  # or with a bracket less
    ("hermes", f"<tool_call>\n{CALL}}}\n</tool_call>", "", [PARIS]),  # or more
    (
        "hermes",
        '<tool_call>{"arguments": {"location": "Paris, France"}, '
        '"name": "get_current_temperature"}</tool_call>',
        "",
        [PARIS],
    ),
    ("hermes", '<tool_call>{"name": "get_time"}</tool_call>', "", [("get_time", {})]),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": null}</tool_call>', "", 1),
    ("hermes", f'<tool_call>{{"type": "function", "function": {CALL}}}</tool_call>', "", [PARIS]),
    ("hermes", f"<tool_call>[{CALL}, {CALL}]</tool_call>", "", [PARIS, PARIS]),
    (
        "hermes",
        '<tool_call>{"name": "get_time", "arguments": "{\\"a\\": 1}"}</tool_call>',
        "",
        [("get_time", {"a": 1})],
    ),
    ("nemotron", f"Hm.\n<TOOLCALL>[{CALL}, {CALL}]</TOOLCALL>", "Hm.", [PARIS, PARIS]),
    ("jamba", f"<tool_calls>[\n{CALL}\n]</tool_calls>", "", [PARIS]),
    ("granite", f"<|tool_call|>[{CALL}]", "", [PARIS]),
    ("qwen3_xml", f"I look.\n\n{XML}\n{XML}", "I look.", [PARIS, PARIS]),
    ("qwen3_xml", XML.removeprefix("<tool_call>\n"), "", [PARIS]),  # some leave it out
    (
        "qwen3_xml",
        '<tool_call>\n<function=get_current_temperature>\n<parameter=location>\n\n a\n"b"\\ \n\n'
        "</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=exact>True</parameter>"
        "<parameter=points>[1, {'x': None}]</parameter><parameter=unit>\nC\n</parameter>"
        "<parameter=other>5</parameter></function></tool_call>",
        "",
        [
            (
                "get_current_temperature",
                {
                    "location": '\n a\n"b"\\ \n',
                    "days": 3,
                    "exact": True,
                    "points": [1, {"x": None}],
                    "unit": "C",
                    "other": "5",
                },
            )
        ],
    ),
    ("llama3_json", PARAMETERS, "", [PARIS]),
    ("llama3_json", f"<|python_tag|>{PARAMETERS}; {PARAMETERS}", "", [PARIS, PARIS]),
    ("llama3_json", PARAMETERS.replace("{", '{"type": "function", ', 1), "", [PARIS]),
    ("mistral", f"[TOOL_CALLS] [{CALL}, {CALL}]", "", [PARIS, PARIS]),
    ("mistral", '[TOOL_CALLS]get_time[ARGS]{"a": 1}[TOOL_CALLS]get_time{}', "", 2),
    (
        "pythonic",
        "[get_current_temperature(location='Paris, France'), get_time()]",
        "",
        [PARIS, ("get_time", {})],
    ),
    (
        "pythonic",
        "[get_time(a='é',\n  b=[1,\r\n\t2], c=\"\\/\")]",
        "",
        [("get_time", {"a": "é", "b": [1, 2], "c": "/"})],
    ),
    (
        "pythonic",
        '<|python_start|>[get_time(a="]\\")", b=[-1, 2.5, {"c": None}], d=True)]<|python_end|>',
        "",
        [("get_time", {"a": ']")', "b": [-1, 2.5, {"c": None}], "d": True})],
    ),
    (
        "pythonic",
        "[get_time(from=1, to='(class=2)', class = \"in='is='\", sunrise=3)]",
        "",
        [("get_time", {"from": 1, "to": "(class=2)", "class": "in='is='", "sunrise": 3})],
    ),
]


def test_kimi_names_its_calls() -> None:
    (call,) = parse("kimi_k2", KIMI.replace(":0", ":12")).calls
    assert (call.name, call.id) == (PARIS[0], "functions.get_current_temperature:12")


HARMONY = [
    (
        "<|channel|>analysis<|message|>Hm. <|end|><|start|>assistant<|channel|>final<|message|>"
        "Four.\n\nYes.<|return|>",
        ("Hm.", "Four.\n\nYes.", []),
    ),
    (
        "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>B"
        "<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
        "<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>{}<|call|>",
        ("A\nB", "I look.", ["get_time"]),
    ),
    (
        " to=functions.get_time<|channel|>commentary json<|message|>{}<|call|>",
        ("", "", ["get_time"]),
    ),
    (
        "<|start|>assistant to=functions.get_time<|channel|>commentary json<|message|>{}<|call|>",
        ("", "", ["get_time"]),
    ),
    ("Plain <|channel|> text", ("", "Plain <|channel|> text", [])),
    ("<|channel|>analysis<|message|>cut of", ("cut of", "", [])),
    ("", ("", "", [])),
]


@pytest.mark.parametrize(("text", "expected"), HARMONY)
def test_harmony(text: str, expected: Any) -> None:
    dialect = DIALECTS["openai"]
    assert dialect.parser is not None
    reply = Reply.of(dialect.parser(TOOLS).parse(text))
    assert (reply.reasoning, reply.content, [call.name for call in reply.calls]) == expected
    if not expected[2]:
        assert Reply.of(dialect.parser(None).parse(text)) == reply


def test_calls_that_nobody_asked_for_are_content_in_harmony() -> None:
    dialect = DIALECTS["openai"]
    assert dialect.parser is not None
    text = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
    assert Reply.of(dialect.parser(None).parse(text)).content == "{}"


@pytest.mark.parametrize(("name", "text", "content", "expected"), EXAMPLES)
def test_calls_as_models_write_them(name: str, text: str, content: str, expected: Any) -> None:
    reply = parse(name, text)
    found = calls(reply)
    assert reply.content == content
    assert (len(found) if isinstance(expected, int) else found) == expected


NO_CALLS = [
    ("hermes", "<tool_call>not JSON</tool_call>"),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": {oops}}</tool_call>'),
    ("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "get_ti'),
    ("hermes", " <tool_cal"),
    ("qwen3_xml", "<tool_call>\n<function=>\n</function>\n</tool_call> \n"),
    ("llama3_json", '{"name": "unknown", "parameters": {}}'),
    ("llama3_json", f"Then {PARAMETERS}"),
    ("llama3_json", ' {"answer": 42}'),
    ("llama3_json", '<|python_tag|>print("x")'),
    ("mistral", "[TOOL_CALLS] [1, 2]"),
    ("mistral", "[TOOL_CALLS]get_time[ARGS]1"),
    ("pythonic", "[1] see below"),
    ("pythonic", "[get_time(1)]"),
    ("pythonic", "[get_time(**{})]"),
    ("pythonic", "[get_time(a=__import__('os').system('true'))]"),
    ("pythonic", "[get_time(a=1), os.remove(path='x')]"),
    ("pythonic", "[get_time(a=f'{1}')]"),
    ("pythonic", "[get_time(a=inf)]"),
    ("pythonic", "[get_time(a=" + "[" * 300 + "]" * 300 + ")]"),
    ("pythonic", "[get_time(a='x"),
]


@pytest.mark.parametrize(("name", "text"), NO_CALLS)
def test_what_is_no_call_is_content_to_the_letter(name: str, text: str) -> None:
    assert parse(name, text) == Reply(content=text)


def test_without_tools_nothing_is_a_call() -> None:
    text = EXAMPLES[0][1]
    assert Reply.of(OutputParser().parse(text)) == Reply(content=text)


def test_arguments_that_break_or_are_cut_are_told_as_far_as_they_go() -> None:
    cut = parse("hermes", f"<tool_call>{CALL[:-9]}")
    assert [call.arguments for call in cut.calls] == ['{"location": "Paris, ']
    assert not cut.content
    broken = parse("hermes", '<tool_call>{"name": "get_time", "arguments": {"a": ]}</tool_call>')
    assert (broken.calls[0].arguments, broken.content) == ('{"a": ', "]}</tool_call>")
    xml = parse("qwen3_xml", XML[:75])
    assert xml.calls[0].arguments == '{"location": "Paris, '


def test_arguments_stream() -> None:
    parser = OutputParser(DIALECTS["hermes"].form, TOOLS)
    assert parser.push('Hm. <tool_call>{"name": "get_time", "argu') == [ContentPiece("Hm.")]
    assert parser.push('ments": {"a') == [CallBegun(0, "get_time"), CallArguments(0, '{"a')]
    assert parser.push('": "}') == [CallArguments(0, '": "}')]
    assert parser.push('"}') == [CallArguments(0, '"}'), CallEnded(0)]
    assert parser.push("}</tool_call>\n") == parser.finish() == []


# -- reasoning ---------------------------------------------------------------------------------

THOUGHTS = [
    ("<think>\nHm.\n</think>\n\nYes.", False, ("Hm.", "Yes.", 0)),
    ("Hm.\n</think>\n\nYes.", True, ("Hm.", "Yes.", 0)),
    ("<think>Hm.</think>Yes.", True, ("Hm.", "Yes.", 0)),  # although the prompt has opened it
    ("<think>\n\n</think>\n\nYes.", False, ("", "Yes.", 0)),
    ("Hm.", True, ("Hm.", "", 0)),
    ("\n<think>Hm", False, ("Hm", "", 0)),
    (" Yes, <think>no</think>", False, ("", " Yes, <think>no</think>", 0)),
    (f"<think>Hm.</think>\n{XML}", False, ("Hm.", "", 1)),
    (f"Hm.\n{XML}\n", True, ("Hm.", "", 1)),  # Qwen 3.5 forgets to end it
    (f"Hm.\n{XML}\nWell.</think>Yes.", True, ("Hm.\nWell.", "Yes.", 1)),
    ("As in <tool_call><function=f></function></tool_call>?</think>Yes.", True, None),
]


@pytest.mark.parametrize(("text", "reasons", "expected"), THOUGHTS)
def test_reasoning(text: str, reasons: bool, expected: tuple[str, str, int] | None) -> None:
    reply = parse("qwen3_xml", text, reasons=reasons, marks=True)
    if expected is None:  # only tools that there are can be called in mid-thought
        expected = (text.removesuffix("</think>Yes."), "Yes.", 0)
    assert (reply.reasoning, reply.content, len(reply.calls)) == expected


# -- what a chat template tells ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "dialect", "reasons"),
    [
        ("{{ '<tool_call>\n{\"name\": <function-name>' }}", "hermes", False),
        ("<tool_call>\n<function=x>\n<parameter=y> ... </think>", "qwen3_xml", True),
        ("{{ '[TOOL_CALLS]' }}", "mistral", False),
        ("{{ '{\"name\": \"' + n + '\", ' }}{{ '\"parameters\": ' }}", "llama3_json", False),
        ("[func_name1(params_name1=params_value1)]", "pythonic", False),
        ("<tool_call>{name}<arg_key>k</arg_key> </think>", "glm45", True),
        ("'<｜tool▁calls▁begin｜>' ... </think>", "deepseek_v3", True),
        ("<|tool_calls_section_begin|>", "kimi_k2", False),
        ("<|channel|>analysis<|message|> <|channel|>final<|message|>", "openai", True),
        ("{% for message in messages %}{{ message.content }}{% endfor %}", None, False),
    ],
)
def test_a_template_tells_its_dialect(template: str, dialect: str | None, reasons: bool) -> None:
    found = dialect_in(template)
    assert found is (DIALECTS[dialect] if dialect else None)
    assert (marks_in(template) is not None) == reasons

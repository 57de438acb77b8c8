"""A dialect is found by what a template writes, and what it says reads the same in any pieces."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from quire.http.chats.speech import Tool, ToolChoice
from quire.text.dialect import DIALECTS, REASONING, Dialect, OutputParser, Reply
from support.dialects_in_templates import dialect_in, marks_in, rendering
from support.obedient import Obedient
from support.tool_schemas import SCHEMAS


def template(calls: str, before: str = "", after: str = "", between: str = "") -> str:
    """calls: one call, by its ``name`` and its arguments ``a``."""
    inner = (
        "{% for c in m.tool_calls %}{% set name = c.function.name %}"
        "{% set a = c.function.arguments %}" + calls
    )
    if between:
        inner += "{% if not loop.last %}" + between + "{% endif %}"
    inner += "{% endfor %}"
    return (
        "{% for m in messages %}<|turn|>{{ m.role }}: {{ m.content }}"
        "{% if m.tool_calls %}" + before + inner + after + "{% endif %}<|end|>"
        "{% endfor %}{% if add_generation_prompt %}<|turn|>assistant: {% endif %}"
    )


VALUE = "{{ v if v is string else v | tojson }}"


def each(text: str) -> str:
    return "{% for k, v in a.items() %}" + text + "{% endfor %}"


def invoked(opens: str, prefix: str, kind: str) -> str:
    parameter = f'<{prefix}parameter name="{{{{ k }}}}"{kind}>{VALUE}</{prefix}parameter>\n'
    one = f'<{prefix}invoke name="{{{{ name }}}}">\n{each(parameter)}</{prefix}invoke>\n'
    return template(one, f"<{opens}>\n", f"</{opens}>")


def invoked_alone(opens: str, prefix: str) -> str:
    """Each call is a message of its own."""
    parameter = f'<{prefix}parameter name="{{{{ k }}}}">{VALUE}</{prefix}parameter>\n'
    one = f'<{prefix}invoke name="{{{{ name }}}}">\n{each(parameter)}</{prefix}invoke>\n'
    return template(
        f" to={{{{ name }}}}<|message|><{opens}>\n{one}</{opens}>",
        between="<|eom|><|start|>assistant",
    )


DSML = "｜DSML｜"
KIND = ' string="{{ "true" if v is string else "false" }}"'
HY = ":opensource>"
XTML = (
    "{{ 'boolean' if v is boolean else 'null' if v is none else 'number' if v is number else "
    "'string' if v is string else 'object' if v is mapping else 'array' }}"
)
GEMMA = (
    '{% macro spelled(v) %}{% if v is string %}<|"|>{{ v }}<|"|>'
    "{% elif v is mapping %}{{ '{' }}"
    "{% for k, w in v.items() %}{{ k }}:{{ spelled(w) }}{{ '' if loop.last else ',' }}{% endfor %}"
    "{{ '}' }}{% elif v is iterable %}["
    "{% for w in v %}{{ spelled(w) }}{{ '' if loop.last else ',' }}{% endfor %}]"
    "{% else %}{{ v | tojson }}{% endif %}{% endmacro %}"
)
PYTHON = (
    "{% for k, v in a.items() %}{{ k }}={{ v | string if v is not string else v | tojson }}"
    "{% if not loop.last %}, {% endif %}{% endfor %}"
)
# By the first name of their dialect; what has none is made from what the template writes.
TEMPLATES: dict[str, str] = {
    "minimax_m2": invoked("minimax:tool_call", "", ""),
    "deepseek_v32": invoked(f"{DSML}function_calls", DSML, KIND),
    "deepseek_v4": invoked(f"{DSML}tool_calls", DSML, KIND),
    "hunyuan_v3": template(
        f"<tool_call{HY}{{{{ name }}}}<tool_sep{HY}\n"
        + each(f"<arg_key{HY}{{{{ k }}}}</arg_key{HY}\n<arg_value{HY}{VALUE}</arg_value{HY}\n")
        + f"</tool_call{HY}\n",
        f"<tool_calls{HY}\n",
        f"</tool_calls{HY}",
    ),
    "minicpm5": template(
        '<function name="{{ name }}">'
        + each(
            '<param name="{{ k }}">{{ "<![CDATA[" + v + "]]>" if v is string and "<" in v else v }}'
            "</param>"
        )
        + "</function>"
    ),
    "kimi_k3": template(
        '<|open|>call tool="{{ name }}" index="{{ loop.index }}"<|sep|>'
        + each(
            f'<|open|>argument key="{{{{ k }}}}" type="{XTML}"<|sep|>{VALUE}'
            "<|close|>argument<|sep|>"
        )
        + "<|close|>call<|sep|>",
        "<|open|>tools<|sep|>",
        "<|close|>tools<|sep|>",
    ),
    "muse": invoked_alone("atem:function_calls", "atem:"),
    "functionary_v3": template(">>>{{ name }}\n{{ a | tojson }}"),
    "gemma4": GEMMA + template("<|tool_call>call:{{ name }}{{ spelled(a) }}<tool_call|>"),
    "lfm2": template(
        "{{ name }}(" + PYTHON + ")", "<|tool_call_start|>[", "]<|tool_call_end|>", ", "
    ),
    "apertus": template(
        '{"{{ name }}": {{ a | tojson }}}', "<|tools_prefix|>[", "]<|tools_suffix|>", ", "
    ),
    "made_of_marks": template("<function={{ name }}>{{ a | tojson }}</function>"),
    "made_with_ids": template(
        "<|call:begin|>{{ c.id }}<|call:name|>{{ name }}<|call:args|>{{ a | tojson }}<|call:end|>",
        "<|calls|>",
    ),
    "made_of_a_list": template(
        '    {\n        "tool": "{{ name }}",\n        "with": {{ a | tojson }}\n    }',
        "Action:\n```json\n[\n",
        "\n]```\n",
        ",\n",
    ),
    "made_of_json": template('{"call": "{{ name }}", "with": {{ a | tojson }}}', between=", "),
}  # fmt: skip
ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"text": 'a "b" <c>', "count": 3, "flag": True, "inner": {"list": [1, "x", None]}},
    {"text": "", "inner": {}, "count": -1},
]
SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "flag": {"type": "boolean"},
        "inner": {"type": "object"},
    },
}
TOOLS = {"f": SCHEMA, "g": SCHEMA}
every_template = pytest.mark.parametrize("name", TEMPLATES)


def found(name: str) -> Dialect:
    dialect = dialect_in(TEMPLATES[name])
    assert dialect is not None
    assert dialect is DIALECTS.get(name) or (name.startswith("made") and not dialect.names)
    return dialect


def written(source: str, *arguments: dict[str, Any]) -> str:
    calls = [
        {"id": f"id{number}000000", "function": {"name": name, "arguments": one}}
        for number, (name, one) in enumerate(zip("fg", arguments, strict=False))
    ]
    said = {"role": "assistant", "content": "", "tool_calls": calls}
    text = rendering(source)(
        [{"role": "user", "content": "USER"}, said], {"add_generation_prompt": False}
    )
    return text.rpartition("<|turn|>assistant: ")[2].removesuffix("<|end|>")


def read(dialect: Dialect, pieces: Any, *, calls: bool = True) -> Reply:
    tools = TOOLS if calls else None
    parser = (
        OutputParser(dialect.form if calls else None, tools)
        if dialect.parser is None
        else dialect.parser(tools, "")
    )
    events = [event for piece in pieces for event in parser.push(piece)]
    return Reply.of([*events, *parser.finish()])


@every_template
def test_calls_come_back_in_any_pieces(name: str) -> None:
    dialect = found(name)
    for first in ARGUMENTS:
        for second in ARGUMENTS:
            text = written(TEMPLATES[name], first, second)
            whole = read(dialect, [text])
            assert [json.loads(call.arguments) for call in whole.calls] == [first, second], text
            assert [call.name for call in whole.calls] == ["f", "g"] and not whole.content, text
            assert read(dialect, text) == whole


@every_template
def test_a_cut_call_loses_nothing(name: str) -> None:
    dialect = found(name)
    text = written(TEMPLATES[name], ARGUMENTS[1])
    for end in range(len(text)):
        reply = read(dialect, text[:end])
        assert len(reply.calls) <= 1
        assert reply == read(dialect, [text[:end]])


@every_template
def test_a_forced_call_is_read_as_its_schema_says(name: str) -> None:
    dialect = found(name)
    model = Obedient(TEMPLATES[name], dialect.marks)
    tools = [Tool(name, parameters=schema, strict=True) for name, schema in SCHEMAS.items()]
    for seed in range(6):
        text, whole, pieces = model.call(tools, ToolChoice("required"), seed)
        assert whole == pieces and whole.calls and not whole.content.strip(), text
        for call in whole.calls:
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


# -- what is found, and what is not ------------------------------------------------------------

HERMES = '<tool_call>{"name": "{{ name }}", "arguments": {{ a | tojson }}}</tool_call>'


def test_what_a_template_writes_counts_more_than_what_it_mentions() -> None:
    mentions = '{# <parameter= [TOOL_CALLS] "parameters": #}'
    assert dialect_in(mentions + template(HERMES)) is DIALECTS["hermes"]
    assert dialect_in(mentions) is DIALECTS["qwen3_xml"]


def test_of_two_that_read_a_call_the_one_that_knows_its_marks_is_taken() -> None:
    text = written(TEMPLATES["deepseek_v4"], ARGUMENTS[1])
    assert len(read(DIALECTS["deepseek_v32"], [text]).calls) == 1
    composed = "{% set d = '" + DSML + "' %}" + TEMPLATES["deepseek_v4"].replace(DSML, "{{ d }}")
    assert dialect_in(composed) is DIALECTS["deepseek_v4"], "although no source has its sign"


@pytest.mark.parametrize(
    "calls",
    [
        "<call>{{ name }}</call>",  # without its arguments
        "<call args='{{ a | tojson }}'>{{ name }}</call>",  # before its name
        "<f>{{ name }}{% for k, v in a.items() %}<{{ k }}>{{ v }}</{{ k }}>{% endfor %}</f>",
        "{{ name }}{{ a | tojson }}",  # without a mark
        "",
    ],
)
def test_what_nothing_reads_back_is_no_dialect(calls: str) -> None:
    assert dialect_in(template(calls)) is None
    assert dialect_in("<tool_call>" + template(calls)) is (None if calls else DIALECTS["hermes"])


def test_what_is_made_of_one_call_has_to_read_two() -> None:
    counted = '<calls n="{{ m.tool_calls | length }}">'
    assert dialect_in(template("<c>{{ name }}{{ a | tojson }}</c>", "<calls>")) is not None
    assert dialect_in(template("<c>{{ name }}{{ a | tojson }}</c>", counted)) is None


def test_a_template_of_one_call_at_a_time_is_proven_by_one() -> None:
    alone = "{% if loop.length > 1 %}{{ raise_exception('one') }}{% endif %}"
    assert dialect_in(template(alone + HERMES)) is DIALECTS["hermes"]
    made = dialect_in(template(alone + "<|call|>{{ name }}<|with|>{{ a | tojson }}"))
    assert made is not None and not made.names
    assert [call.name for call in read(made, "Well.<|call|>f<|with|>{}").calls] == ["f"]


def test_marks_around_content_are_left_out_with_calls_and_without() -> None:
    kimi = (
        "<|open|>think<|sep|>Hm.<|close|>think<|sep|><|open|>response<|sep|>Well.<|close|>response"
        "<|sep|><|close|>message<|sep|>"
    )
    for calls in (True, False):
        reply = read(DIALECTS["kimi_k3"], kimi, calls=calls)
        assert (reply.reasoning, reply.content) == ("Hm.", "Well.")
        assert read(DIALECTS["functionary_v3"], "all\nWell.", calls=calls).content == "Well."
    text = "all\nWell.>>>f\n{}"
    assert len(read(DIALECTS["functionary_v3"], text).calls) == 1
    assert read(DIALECTS["functionary_v3"], text, calls=False).content == "Well.>>>f\n{}"


def test_marks_of_reasoning_are_those_around_a_thought_that_is_written() -> None:
    shown = "{% for m in messages %}%s{{ m.reasoning_content }}%s{{ m.content }}{% endfor %}"
    for name in ("qwen3", "seed_oss", "cohere_command3", "hunyuan_v3", "minimax_m3", "apriel"):
        marks = REASONING[name]
        source = shown.replace("%s", marks.start, 1).replace("%s", marks.end)
        assert marks_in(source) is marks_in("{# </think> #}" + source) is marks
    assert marks_in("{# </think> #}" + shown.replace("%s", "/")) is None

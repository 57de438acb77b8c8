"""What of an answer stands in a prompt: by what the template writes, whatever clients say."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from references.packages import Unreachable, published_templates

from quire.core.errors import RequestError
from quire.text.begun import Begun, begun_in
from quire.text.chat_template import ChatTemplate
from quire.text.dialect import REASONING, Marks, OutputParser, ParserState, Reply, harmony
from support.dialects_in_templates import marks_in

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
THINK = Marks("<think>", "</think>")
CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}
HELLO = [{"role": "user", "content": "Hello."}]


def begun(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any] | None = None,
    marks: Marks = THINK,
) -> Begun:
    given = variables or {}
    prompt = template.render(messages, given, math.inf)
    render = lambda these, those: template.render(these, those, math.inf)  # noqa: E731
    return begun_in(prompt, render, messages, given, (marks.start, marks.end))


def standing(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any] | None = None,
    marks: Marks = THINK,
) -> ParserState:
    return marks.state_after(*begun(template, messages, variables, marks))


# -- the law, over templates as their makers publish them ------------------------------------------


@pytest.fixture(scope="module")
def published() -> dict[str, tuple[ChatTemplate, Marks]]:
    try:
        templates = published_templates()
    except Unreachable as why:
        pytest.skip(str(why))
    known = {name: (source, marks_in(source)) for name, source in templates.items()}
    return {
        name: (ChatTemplate(source, SPECIAL), marks) for name, (source, marks) in known.items()
        if marks is not None
    }  # fmt: skip


def conversations(word: str) -> Iterator[list[dict[str, Any]]]:
    """Conversations in each of which somebody says a word."""
    user, system = {"role": "user", "content": "Hello."}, {"role": "system", "content": "Be brief."}
    arguments = {"city": "Rome"}
    call = {"id": "a12345678", "type": "function"}
    called = {**call, "function": {"name": "weather", "arguments": arguments}}
    calling = {"role": "assistant", "content": "", "tool_calls": [called]}
    answer = {"role": "tool", "tool_call_id": "a12345678", "name": "weather", "content": "hot"}
    said = {"role": "assistant", "content": "Well."}
    yield [{**user, "content": f"What does {word} mean?"}]
    yield [{**user, "content": f"Hello. {word}"}]
    yield [{**user, "content": f"{word}\n"}]
    yield [{**system, "content": f"Write {word} first."}, user]
    yield [{**user, "content": word}, {**said, "content": f"A tag, {word}"}, user]
    yield [user, calling, {**answer, "content": f"hot {word}"}]
    told = {**called, "function": {"name": "weather", "arguments": {"city": f"Rome {word}"}}}
    yield [user, {**calling, "tool_calls": [told]}, answer]
    thought = {"reasoning_content": f"Hm. {word}", "reasoning": f"Hm. {word}"}
    yield [user, {**said, **thought}, user]
    yield [user, {**said, "content": f"Well. {word}"}]


VARIABLES: list[dict[str, Any]] = [
    {}, {"enable_thinking": True}, {"enable_thinking": False, "thinking": True},
    {"add_generation_prompt": False},
    {"tools": [{"type": "function", "function": {"name": "weather", "description": "WORD",
                                                 "parameters": {"type": "object",
                                                                "properties": {}}}}]},
]  # fmt: skip


def test_what_others_have_said_never_opens_or_closes_reasoning(
    published: dict[str, tuple[ChatTemplate, Marks]],
) -> None:
    decided, opened = 0, set()
    for name, (template, marks) in published.items():
        words = [marks.start, marks.end, f"{marks.start}{marks.end}", f"{marks.end}{marks.start}"]
        for variables in VARIABLES:
            for harmless, *others in zip(
                *map(conversations, ["a word", "nothing", *words]), strict=True
            ):
                try:
                    expected = standing(template, harmless, variables, marks)
                    assert expected == standing(template, others[0], variables, marks)
                except RequestError:  # no such conversations with this one
                    continue
                for word, messages in zip(words, others[1:], strict=True):
                    told = json.loads(json.dumps(variables).replace("WORD", json.dumps(word)[1:-1]))
                    try:
                        found = standing(template, messages, told, marks)
                    except RequestError:  # some let nobody write their marks
                        continue
                    assert found == expected, (name, messages, variables)
                    decided += 1
                    if found.reasons:
                        opened.add(name)
    assert decided > 4000 and len(opened) > 15


THOUGHTS = [" ".join(["So", "they", "ask", "me", "this."] * count) for count in (1, 8, 40)]


@pytest.mark.parametrize("thought", ["So", *THOUGHTS], ids=lambda thought: str(len(thought)))
def test_a_thought_of_any_length_is_gone_on_with(
    published: dict[str, tuple[ChatTemplate, Marks]], thought: str
) -> None:
    asked = 0
    for name, (template, marks) in published.items():
        fields = {"reasoning_content": thought, "reasoning": thought}
        for last, expected in (
            ({"content": f"{marks.start}{thought}"}, ParserState(True, True)),
            ({"content": f"{marks.start}\n{thought}"}, ParserState(True, True)),
            ({"content": f"{marks.start}\n"}, ParserState(True)),
            ({"content": f"{marks.start}{thought}{marks.end}Well,"}, ParserState(False, True)),
            ({"content": "Well,", **fields}, ParserState(False, True)),
            ({"content": "Well,"}, ParserState(False, True)),
            ({"content": f"The tag {marks.start} is"}, ParserState(False, True)),
        ):
            messages = [
                {"role": "user", "content": f"What is {marks.end}{marks.start}?"},
                {"role": "assistant", **last},
            ]
            try:
                prompt = template.render(messages, CONTINUE, math.inf)
                found = standing(template, messages, CONTINUE, marks)
            except RequestError:
                takes_none = REASONING["openai_gptoss"], REASONING["gemma4"]
                assert marks in takes_none, "which take their marks from nobody"
                continue
            if name == "NVIDIA-Nemotron-Nano-v2" and not expected.reasons:
                # It opens the reasoning of a last message whatever that says.
                expected = ParserState(marks.end not in last["content"], True)
            assert found == expected, (name, last, prompt[-200:])
            asked += 1
    assert asked > 200


# -- templates that do it in their own way --------------------------------------------------------


def chat(end: str, before: str = "") -> ChatTemplate:
    return ChatTemplate(
        before + "{% for one in messages %}<|{{ one.role }}|>{{ one.content }}<|end|>{% endfor %}"
        f"{end}",
        {},
    )


ASKED = "{% if add_generation_prompt %}<|assistant|><think>{% endif %}"


@pytest.mark.parametrize(
    ("template", "opening"),
    [
        (chat(ASKED), "<|assistant|><think>"),
        (chat("<|assistant|><think>"), "<|assistant|><think>"),
        # Without the beginning of an answer the text has another end.
        (chat(ASKED + "{% if not add_generation_prompt %}</s>{% endif %}"), "<|assistant|><think>"),
        (chat("<|assistant|>", "Think between <think> and its end."), "<|assistant|>"),
    ],
    ids=["when asked", "always", "another end", "speaks of it"],
)
@pytest.mark.parametrize("said", ["Hi.", "Hi <think>", "</think>Hi", "<think>"])
def test_the_template_s_own_end_decides(template: ChatTemplate, opening: str, said: str) -> None:
    found = begun(template, [{"role": "user", "content": said}])
    assert found.said == "" and found.opening.removeprefix("<|end|>") == opening


def test_a_template_may_decide_by_what_is_said() -> None:
    asked = "{% if add_generation_prompt %}<|assistant|>%s{%% endif %%}"
    hushed = "{% if messages[-1].content.endswith('/no_think') %}<think></think>{% endif %}"
    eager = "{% if messages[-1].content.endswith('!') %}<think>{% endif %}"
    template = chat(asked.replace("%s", hushed + eager).replace("%%", "%"))
    for said, opening in (("Hi", ""), ("Hi!", "<think>"), ("</think>!", "<think>"),
                          ("<think> /no_think", "<think></think>")):  # fmt: skip
        found = begun(template, [{"role": "user", "content": said}])
        assert found.opening == f"<|assistant|>{opening}"


def test_a_template_that_takes_no_other_conversation_is_taken_at_its_word() -> None:
    """It refuses those that begin no answer, and texts that are not as it knows them."""
    strict = (
        "{% if not add_generation_prompt or messages[-1].content not in ['Hi', 'xxxxxxx'] %}"
        "{{ raise_exception('no') }}{% endif %}{{ messages[-1].content }}<|assistant|>"
    )
    for end, reasons in (("<think>", True), ("", False)):
        messages = [{"role": "user", "content": "Hi"}]
        assert standing(ChatTemplate(strict + end, {}), messages).reasons == reasons


def test_what_is_said_after_the_beginning_of_an_answer_is_no_mark() -> None:
    """A template may write what clients say wherever it likes."""
    for field in ("messages[0].content", "tools[0].text", "documents[0].text"):
        odd = f"x{{% if add_generation_prompt %}}{{{{ {field} }}}}<|assistant|>{{% endif %}}"
        for said in ("Hi", "<think>", "a</think><think>"):
            messages = [{"role": "user", "content": said}]
            given = {} if "messages" in field else {field.partition("[")[0]: [{"text": said}]}
            assert not standing(ChatTemplate(odd, {}), messages, given).reasons
            assert standing(ChatTemplate(odd + "<think>", {}), messages, given).reasons


def test_the_mark_of_a_message_s_end_cannot_be_written_by_anybody() -> None:
    quoting = chat("{{ messages[0].content }}<think>")
    for said in ("Hi", "CONTINUE_FINAL_MESSAGE_TAG", "MARK0123456789abcdef"):
        messages = [{"role": "user", "content": said}, {"role": "assistant", "content": "Well"}]
        prompt = quoting.render(messages, CONTINUE, math.inf)
        assert prompt == f"<|user|>{said}<|end|><|assistant|>Well"
        assert standing(quoting, messages).reasons


# -- what is left of a message that is gone on with -----------------------------------------------

TRIMMING = (
    "{% for one in messages %}<|{{ one.role }}|>\n{{ one.content | trim }}"
    "{% if not loop.last %}<|end|>{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("Well ", "Well"),
        ("Well\n\n", "Well"),
        (" Well", "Well"),
        ("Well", "Well"),
        ("", ""),
        ("\n", ""),
    ],
)
def test_a_template_that_trims_takes_white_space_of_the_message_alone(said: str, kept: str) -> None:
    template = ChatTemplate(TRIMMING, {})
    messages = [*HELLO, {"role": "assistant", "content": said}]
    prompt = template.render(messages, CONTINUE, math.inf)
    assert prompt == f"<|user|>\nHello.<|end|><|assistant|>\n{kept}"
    assert begun(template, messages, CONTINUE) == ("<|end|><|assistant|>\n", kept)


def test_a_template_s_own_way_with_a_thought_is_seen() -> None:
    dropping = "{{ messages[-1].content.split('</think>')[-1] }}"
    moving = "<think>{{ messages[-1].content.split('<think>')[-1] }}"
    last = {"role": "assistant", "content": "<think>Hm.</think>Well"}
    header = "{{ messages[0].content }}<|assistant|>"
    for source, content, expected in (
        (dropping, "<think>Hm.</think>Well", ParserState(False, True)),
        (moving, " <think>Hm. So", ParserState(True, True)),
        (moving, "Hm. So", ParserState(True, True)),
    ):
        messages = [*HELLO, {**last, "content": content}]
        assert standing(ChatTemplate(header + source, {}), messages, CONTINUE) == expected


# -- reading from there ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("marks", "opening", "said", "expected"),
    [
        (THINK, "<|assistant|>", "", (False, False)),
        (THINK, "<|assistant|><think>\n", "", (True, False)),
        (THINK, "<|assistant|><think>\n\n</think>\n\n", "", (False, False)),
        (THINK, "<|assistant|></think>", "", (False, False)),
        (THINK, "", " <think> ", (True, False)),
        (THINK, "<think>", "Hm", (True, True)),
        (THINK, "<think>", "Hm</think>", (False, True)),
        (THINK, "<think></think>", "<think>Hm", (True, True)),
        (REASONING["deepseek_r1"], "<|assistant|>", "", (True, False)),
        (REASONING["deepseek_r1"], "<|assistant|><think>\n</think>\n", "", (False, False)),
        (REASONING["deepseek_r1"], "<|assistant|>", "Well", (False, True)),
        (REASONING["deepseek_r1"], "<|assistant|>", "<think>Hm", (True, True)),
        (REASONING["openai_gptoss"], "<|start|>assistant", "", (True, False)),
        (REASONING["openai_gptoss"], "<|start|>assistant<|channel|>final<|message|>", "Well",
         (False, True)),
    ],
)  # fmt: skip
def test_where_an_answer_stands(
    marks: Marks, opening: str, said: str, expected: tuple[bool, bool]
) -> None:
    assert marks.state_after(opening, said) == expected


@pytest.mark.parametrize(
    ("at", "text", "reasoning", "content"),
    [
        (ParserState(), " <think> Hm. </think> Hi", "Hm.", "Hi"),
        (ParserState(True), "\nHm. </think> Hi", "Hm.", "Hi"),
        (ParserState(True, True), " and so.</think> Hi", " and so.", "Hi"),
        (ParserState(True, True), "<think> is a tag.</think> Hi", "<think> is a tag.", "Hi"),
        (ParserState(False, True), " <think> is a tag.</think> Hi", "",
         " <think> is a tag.</think> Hi"),
    ],
)  # fmt: skip
def test_a_text_is_read_from_where_it_stands(
    at: ParserState, text: str, reasoning: str, content: str
) -> None:
    reply = Reply.of(OutputParser(marks=THINK, state=at).parse(text))
    assert (reply.reasoning, reply.content) == (reasoning, content)


@pytest.mark.parametrize(
    ("opening", "text", "reasoning", "content"),
    [
        ("<|start|>assistant", "<|channel|>analysis<|message|>Hm.<|end|>", "Hm.", ""),
        ("<|start|>assistant<|channel|>analysis<|message|>", " Hm.<|end|>", "Hm.", ""),
        ("<|start|>assistant<|channel|>analysis<|message|>I", " see.<|end|>", " see.", ""),
        ("<|start|>assistant<|channel|>final<|message|>It", " is so.", "", " is so."),
        ("<|channel|>analysis<|message|>I see.<|end|><|start|>assistant", "Hi", "", "Hi"),
        ("<|channel|>analysis<|message|>I<|end|><|start|>assistant<|channel|>final<|message|>",
         "Hi", "", "Hi"),
    ],
)  # fmt: skip
def test_a_message_of_harmony_goes_on_in_its_channel(
    opening: str, text: str, reasoning: str, content: str
) -> None:
    reply = Reply.of(harmony.parser(None, opening).parse(text))
    assert (reply.reasoning, reply.content) == (reasoning, content)

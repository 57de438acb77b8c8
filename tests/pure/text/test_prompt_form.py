"""How texts become prompts where a caller says so: special tokens, cuts, gaps to be filled."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers

import quire
from quire.core.errors import RequestError
from quire.engine.input_processor import InputProcessor, ModelOutputs
from quire.text.chat_template import ChatTemplate
from quire.text.encoder import PromptForm
from quire.text.tokenizer import JsonTokenizer

DEMO = Path(quire.__file__).parent / "models/demo" / "tokenizer.json"
MARKS = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]


def processor(*marks: str, bos: str = "", template: str = "") -> InputProcessor:
    backend = tokenizers.Tokenizer.from_file(str(DEMO))
    backend.add_special_tokens([*marks, *([bos] if bos else [])])
    if bos:
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, backend.token_to_id(bos))]
        )
    tokenizer = JsonTokenizer(backend, ChatTemplate(template, {}) if template else None)
    return InputProcessor(
        tokenizer, ModelOutputs(backend.get_vocab_size()), max_model_len=64, seed=0
    )


def test_a_gap_is_asked_for_by_the_model_s_marks() -> None:
    inputs = processor(*MARKS, bos="<bos>")
    decode, form = inputs.tokenizer.decode, PromptForm(suffix=" return x")
    for given in ("def f(x):", inputs.tokenizer.encode("def f(x):", add_special_tokens=False)):
        text = decode(inputs.text_prompt(given, form), skip_special_tokens=False)
        assert text == "<bos><fim_prefix>def f(x):<fim_suffix> return x<fim_middle>"
    bare = PromptForm(suffix="b", add_special_tokens=False)
    assert decode(inputs.text_prompt("a", bare), skip_special_tokens=False).startswith("<fim_p")


@pytest.mark.parametrize("marks", [(), MARKS[:2]])
def test_a_model_without_marks_fills_no_gap(marks: tuple[str, ...]) -> None:
    with pytest.raises(RequestError, match="fills in the middle") as refused:
        processor(*marks).text_prompt("a", PromptForm(suffix="b"))
    assert refused.value.field == "suffix"


def test_special_tokens_and_cuts() -> None:
    inputs = processor(bos="<bos>", template="{{ messages[0].content }}")
    whole = inputs.text_prompt("one two three four", PromptForm())
    bare = inputs.text_prompt("one two three four", PromptForm(add_special_tokens=False))
    assert whole[1:] == bare and inputs.tokenizer.decode(whole[:1], skip_special_tokens=False)
    assert inputs.text_prompt("one two three four", PromptForm(most=3)) == whole[-3:]
    assert inputs.text_prompt("one two", PromptForm(most=99, keep_first=True))[0] == whole[0]
    begun = inputs.text_prompt("one two three four", PromptForm(most=3, keep_begin=True))
    assert begun == [whole[0], *whole[-2:]], "a text that is gone on with begins as one"
    told = [{"role": "user", "content": "one two three four"}]
    chat = inputs.begin_chat(told, {}, PromptForm(True, 3, keep_begin=True)).token_ids
    assert chat[0] == whole[0] and len(chat) == 3


GOES_ON = {"continue_final_message": True}


def test_a_message_is_gone_on_with_even_by_a_template_that_trims() -> None:
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content%s }}</>{% endfor %}"
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well, "}]
    for trim, end in (("", "Well, "), (" | trim", "Well,")):
        template = ChatTemplate(source.replace("%s", trim), {})
        assert template.render(turns, GOES_ON, 999) == f"<user>hi</><assistant>{end}"
    assert turns[1]["content"] == "Well, "


@pytest.mark.parametrize(("content", "words"), [(None, "is a text"), ("x", "leaves out")])
def test_a_message_that_cannot_be_gone_on_with(content: str | None, words: str) -> None:
    template = ChatTemplate("{% for m in messages[:-1] %}{{ m.content }}{% endfor %}", {})
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": content}]
    with pytest.raises(RequestError, match=words) as refused:
        template.render(turns, GOES_ON, 999)
    assert refused.value.field == "continue_final_message"

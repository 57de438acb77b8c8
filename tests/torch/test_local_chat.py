"""``quire chat`` with a model in its own process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire import LLM
from quire.core.protocol import PendingStep, Step
from quire.tools.terminal.local import LocalModel

HELLO = [{"role": "user", "content": "What is a list?"}]
GREEDY = {"temperature": 0, "max_tokens": 12}
_TEMPLATE = "{% for one in messages %}{{ one.content }}\n{% endfor %}{# </think> #}"


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(kv_cache_memory_bytes="4MiB")


def test_an_answer_is_what_llm_gives_and_its_room_is_exact(llm: LLM) -> None:
    model = LocalModel(llm)
    (expected,) = llm.chat(HELLO, llm.default_sampling_params(**GREEDY), use_tqdm=False)
    pieces = list(model.answer(HELLO, GREEDY))
    assert "".join(piece.text for piece in pieces) == expected.outputs[0].text
    ending = pieces[-1].ending
    assert ending is not None and ending.finish_reason == "length"
    assert (ending.prompt_tokens, ending.output_tokens) == (len(expected.prompt_token_ids), 12)
    assert model.max_model_len is not None
    assert model.room(HELLO) == model.max_model_len - ending.prompt_tokens


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Whoever runs the tests may ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_waits_for_the_end_of_a_step(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = LocalModel(llm).answer(HELLO, {"max_tokens": 500, "ignore_eos": True})
    next(answer)
    submit, begun, ended = llm.engine.executor.submit, list[int](), list[int]()

    def interrupted(step: Step) -> PendingStep:
        begun.append(1)
        signal.raise_signal(signal.SIGINT)  # nothing is raised here
        pending = submit(step)
        ended.append(1)
        return pending

    monkeypatch.setattr(llm.engine.executor, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(answer)
    assert begun == ended == [1] and not llm.engine.has_work
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_reasoning_is_told_from_the_answer(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    for opening, reasons in (
        ("<think>A list is", True),
        ("<think></think>A list is", False),
        ("A list is", False),
    ):
        template.write_text(_TEMPLATE + opening)
        model = LocalModel(LLM(kv_cache_memory_bytes="4MiB", chat_template=str(template)))
        for asked in ("What is a list?", "What is <think>?", "What is </think>?"):
            pieces = list(model.answer([{"role": "user", "content": asked}], GREEDY))
            assert bool("".join(piece.reasoning for piece in pieces).strip()) == reasons
            assert bool("".join(piece.text for piece in pieces).strip()) != reasons

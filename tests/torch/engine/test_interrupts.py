"""Whatever interrupts a call of ``LLM``, later answers are those of a fresh engine.

900 interrupts at lines all over every verb, with a model whose tokens depend on each key that
they see: a key that was never computed makes another text.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from quire import LLM, BeamSearchParams, SamplingParams
from quire.core.errors import EngineError, QuireError, UnknownSessionError
from quire.core.protocol import Step
from support.interrupted import interrupted, lines_of
from support.live_server import scripted_engine
from support.scripted_executor import ScriptedExecutor

SHORT = SamplingParams(max_tokens=6, ignore_eos=True, seed=1)
PROMPTS = [[5, 6, 7, 8, 9, 10, 11, 12, 13], [5, 6, 7, 8, 9, 10, 99]]
TRIES = 900


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Whoever runs the tests may ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def scripted(monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[LLM, ScriptedExecutor]:
    engine, executor = scripted_engine(**options)
    capacity = type("Capacity", (), {"model_name": "demo"})()
    monkeypatch.setattr("quire.engine.llm.build_engine", lambda config: (engine, capacity))
    return LLM(), executor


def texts(llm: LLM) -> list[list[int]]:
    return [o.outputs[0].token_ids for o in llm.generate(PROMPTS, SHORT, use_tqdm=False)]


def nothing_is_left(llm: LLM) -> None:
    engine = llm.engine
    usage = engine.scheduler.allocator.usage()
    assert not engine.has_work and not engine.torn
    assert usage.cached + usage.free == usage.capacity
    assert engine.scheduler.audit() == []


def turns(llm: LLM) -> None:
    with llm.open_session() as session:
        session.append(PROMPTS[0])
        session.generate(SHORT)
        session.append([20, 21])
        session.recompute(3)
        session.generate(SHORT)
        session.hard_cut()


def streamed(llm: LLM) -> None:
    deltas = llm.stream(PROMPTS[0], SHORT)
    next(deltas)
    llm.generate(PROMPTS[1], SHORT, use_tqdm=False)
    list(deltas)


VERBS: dict[str, Callable[[LLM], object]] = {
    "generate": lambda llm: llm.generate(PROMPTS, SHORT, use_tqdm=False),
    "generate many": lambda llm: llm.generate(
        PROMPTS, SamplingParams(n=3, max_tokens=4, seed=2, ignore_eos=True), use_tqdm=False
    ),
    "chat": lambda llm: llm.chat([{"role": "user", "content": "Hi"}], SHORT, use_tqdm=False),
    "beam_search": lambda llm: llm.beam_search(PROMPTS, BeamSearchParams(2, 4)),
    "embed": lambda llm: llm.embed(PROMPTS, use_tqdm=False),
    "encode": lambda llm: llm.encode(PROMPTS, use_tqdm=False),
    "score": lambda llm: llm.score("one", ["two", "three"], use_tqdm=False),
    "sessions": turns,
    "stream": streamed,
    "reset_prefix_cache": lambda llm: llm.reset_prefix_cache(),
}


# What is raised while Python collects a stream that nobody holds is told, and goes no further.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", VERBS)
def test_an_interrupt_at_any_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    llm, _ = scripted(monkeypatch)
    expected, verb = texts(llm), VERBS[name]
    verb(llm)  # what is loaded on first use has been
    count, came = lines_of(lambda: verb(llm)), 0
    tries = min(TRIES // len(VERBS), count)
    for number in range(tries):
        llm.reset_prefix_cache()  # so that each try goes through all that the first one does
        came += interrupted(lambda: verb(llm), 1 + number * count // tries)
        nothing_is_left(llm)
        assert texts(llm) == expected
    assert came > tries * 0.9
    done = [threading.Thread(target=lambda: texts(llm)) for _ in range(2)]
    for thread in done:
        thread.start()
    for thread in done:
        thread.join(60)
        assert not thread.is_alive(), "an interrupted call has kept its place in line"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def at_step(executor: ScriptedExecutor, number: int, act: Callable[[], object]) -> None:
    """Do something in the midst of a step."""
    left = [number]

    def fail(step: Step) -> None:
        left[0] -= 1
        if not left[0]:
            act()

    executor.fail = fail


@pytest.mark.parametrize("name", [name for name in VERBS if name != "reset_prefix_cache"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_leaves_a_step_is_a_failed_step(
    name: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, executor = scripted(monkeypatch)
    expected = texts(llm)

    def leave() -> None:
        raise error

    for number in (1, 2):
        llm.reset_prefix_cache()
        at_step(executor, number, leave)
        with contextlib.suppress(error, QuireError):
            VERBS[name](llm)
        at_step(executor, 0, leave)
        nothing_is_left(llm)
        assert texts(llm) == expected


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGALRM])
def test_a_signal_has_its_effect_between_two_steps(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, executor = scripted(monkeypatch)
    expected = texts(llm)
    heard = list[int]()

    def hear(signum: int, frame: object) -> None:
        heard.append(executor.num_steps)
        raise TimeoutError

    before = signal.signal(number, hear)
    try:
        llm.reset_prefix_cache()
        begun = executor.num_steps
        at_step(executor, 2, lambda: signal.raise_signal(number))
        with pytest.raises(TimeoutError):
            llm.generate(PROMPTS, SHORT, use_tqdm=False)
        assert heard == [begun + 2], "the step was not interrupted, and no other one begun"
        assert signal.getsignal(number) is hear
        nothing_is_left(llm)
        cached = llm.engine.scheduler.allocator.usage().cached
        assert cached, "what had been computed can be found"
        assert texts(llm) == expected
    finally:
        signal.signal(number, before)


def test_a_handler_that_raises_nothing_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    llm, executor = scripted(monkeypatch)
    expected, heard = texts(llm), list[int]()
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        at_step(executor, 2, lambda: signal.raise_signal(signal.SIGUSR1))
        assert texts(llm) == expected and heard == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_session_outlives_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    llm, executor = scripted(monkeypatch)
    with llm.open_session() as session:
        session.append(PROMPTS[0])
        at_step(executor, 2, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            session.generate(SHORT)
        at_step(executor, 0, lambda: None)
        known = session.token_ids
        assert len(known) > len(PROMPTS[0])
        session.append([30])
        (fresh,) = llm.generate([[*known, 30]], SHORT, use_tqdm=False)
        assert session.generate(SHORT).outputs[0].token_ids == fresh.outputs[0].token_ids


def test_what_an_engine_has_lost_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    llm, executor = scripted(monkeypatch)
    session, deltas = llm.open_session(), llm.stream(PROMPTS[0], SHORT)
    next(deltas)

    def leave() -> None:
        raise SystemExit

    at_step(executor, 1, leave)
    with pytest.raises(SystemExit):
        llm.generate(PROMPTS, SHORT, use_tqdm=False)
    at_step(executor, 0, leave)
    with pytest.raises(EngineError, match="interrupted in the middle of a step"):
        next(deltas)
    with pytest.raises(UnknownSessionError):
        session.append([1])


def test_an_interrupt_with_a_real_model() -> None:
    llm = LLM(kv_cache_memory_bytes="4MiB")
    prompts = ["A list is a kind of sequence, and may be changed.", "A list is"]
    params = SamplingParams(temperature=0.0, max_tokens=5)

    def ask() -> list[str]:
        return [o.outputs[0].text for o in llm.generate(prompts, params, use_tqdm=False)]

    expected = ask()
    llm.reset_prefix_cache()
    count = lines_of(ask)
    for line in range(1, count, count // 60):
        llm.reset_prefix_cache()
        interrupted(ask, line)
        nothing_is_left(llm)
        assert ask() == expected

"""Streaming sessions on a real model: its text is that of one long sequence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.capabilities.sessions import SessionVerb
from quire.core.errors import ConfigError, RequestError, SessionBusyError, UnknownSessionError
from quire.engine.streaming_session import StreamingSession
from support.hf_reference import hf_greedy, random_prompts
from support.streaming_reference import StreamingReference

ModelDir = Callable[[str], Path]

INPUTS = random_prompts(21, 1, 13, 30, 7)
NEW_TOKENS = 12
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)


def make_llm(directory: Path, **options: Any) -> LLM:
    given = {"block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 16, **options}
    return LLM(directory, **given)


def talk(session: StreamingSession, inputs: list[list[int]]) -> list[list[int]]:
    answers = []
    for tokens in inputs:
        session.append(tokens)
        output = session.generate(GREEDY)
        assert output.prompt_token_ids == tokens
        answers.append(output.outputs[0].token_ids)
    return answers


def by_transformers(directory: Path, inputs: list[list[int]]) -> list[list[int]]:
    """The same turns, each as a prompt of its own."""
    history: list[int] = []
    answers = []
    for tokens in inputs:
        history += tokens
        answers.append(hf_greedy(directory, history, NEW_TOKENS))
        history += answers[-1]
    return answers


def by_streaming_llm(
    directory: Path, inputs: list[list[int]], window: int, sinks: int
) -> list[list[int]]:
    reference = StreamingReference(directory, window, sinks)
    answers = []
    pending: list[int] = []
    for tokens in inputs:
        answers.append(reference.greedy([*pending, *tokens], NEW_TOKENS))
        pending = answers[-1][-1:]  # generated, but not fed yet
    return answers


def check_nothing_leaked(llm: LLM) -> None:
    usage = llm.engine.scheduler.allocator.usage()
    assert usage.cached + usage.free == usage.capacity


@pytest.mark.parametrize("family", ["llama", "opt", "gpt_neox", "mistral", "gemma2"])
def test_turns_continue_one_sequence(family: str, model_dir: ModelDir) -> None:
    directory, llm = model_dir(family), make_llm(model_dir(family), max_model_len=200)
    with llm.open_session() as session:
        assert talk(session, INPUTS) == by_transformers(directory, INPUTS)
        assert len(session.token_ids) == sum(map(len, INPUTS)) + 5 * NEW_TOKENS
    check_nothing_leaked(llm)


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_sessions_outlive_their_blocks(mode: str, model_dir: ModelDir) -> None:
    """Three talks in turn, in a pool that holds little more than one of them."""
    directory = model_dir("llama")
    block_bytes = make_llm(directory).capacity.kv_bytes_per_token * 4
    llm = make_llm(
        directory,
        window=20,
        attention_sinks=5,
        kv_cache_memory_bytes=15 * block_bytes,
        preemption_mode=mode,
        swap_space=0.0 if mode == "recompute" else 0.01,
    )
    talks = [INPUTS, INPUTS[1:], INPUTS[::-1]]
    sessions = [llm.open_session() for _ in talks]
    answers: list[list[list[int]]] = [[] for _ in talks]
    for turn in range(4):
        for session, inputs, given in zip(sessions, talks, answers, strict=True):
            given += talk(session, [inputs[turn]])
    wanted = [by_streaming_llm(directory, inputs[:4], 20, 5) for inputs in talks]
    assert answers == wanted
    decisions = [d for d in llm.engine.decisions() if d.what.value == mode]
    assert decisions and all("idle while" in decision.why for decision in decisions)
    for session in sessions:
        session.close()
    check_nothing_leaked(llm)


def test_a_session_runs_on_beyond_the_model(model_dir: ModelDir) -> None:
    directory, inputs = model_dir("llama"), random_prompts(*[23] * 12)
    llm = make_llm(directory, window=16, attention_sinks=4)
    with llm.open_session() as session:
        assert talk(session, inputs) == by_streaming_llm(directory, inputs, 16, 4)
        assert len(session.token_ids) == 420


def test_cut_and_recompute_start_from_position_0(model_dir: ModelDir) -> None:
    directory = model_dir("llama")
    llm = make_llm(directory, window=16, attention_sinks=3)
    with llm.open_session() as session:
        talk(session, INPUTS)
        history = session.token_ids
        session.recompute(9)
        kept = [*history[:3], *history[-9:]]
        assert session.token_ids == kept
        session.append([5, 6])
        answer = session.generate(GREEDY).outputs[0].token_ids
        assert answer == StreamingReference(directory, 16, 3).greedy([*kept, 5, 6], NEW_TOKENS)
        session.hard_cut()
        assert (session.token_ids, session.cache_epoch) == ([], 1)
        assert talk(session, INPUTS[:2]) == by_streaming_llm(directory, INPUTS[:2], 16, 3)
        assert [event.what for event in session.events()][-5:] == [
            SessionVerb.GENERATE,
            SessionVerb.END,
            SessionVerb.APPEND,
            SessionVerb.GENERATE,
            SessionVerb.END,
        ]


def test_a_session_recomputes_by_itself_when_its_ring_is_full(model_dir: ModelDir) -> None:
    directory = model_dir("llama")
    llm = make_llm(directory, window=16, attention_sinks=3)
    four = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    known: list[int] = []
    with llm.open_session(recompute_last_n=9) as session:
        for given in ([5, 6, 7], [8, 9, 10, 11], [12], [13, 14] * 6):
            session.append(given)
            if len(known) + len(given) + 4 > 3 + 16:
                known = [*known[:3], *known[3:][-9:]]
            known += given
            answer = session.generate(four).outputs[0].token_ids
            assert answer == StreamingReference(directory, 16, 3).greedy(known, 4)
            known += answer
            assert session.token_ids == known
        verbs = [event.what for event in session.events()]
    assert verbs.count(SessionVerb.RECOMPUTE) == 2


def test_streams_of_two_sessions_run_side_by_side(model_dir: ModelDir) -> None:
    directory, llm = model_dir("llama"), make_llm(model_dir("llama"))
    first, second = llm.open_session(), llm.open_session()
    first.append(INPUTS[0])
    second.append(INPUTS[2])
    streams = [first.stream(GREEDY), second.stream(GREEDY)]
    got: list[list[int]] = [[], []]
    for _ in range(4):
        for stream, tokens in zip(streams, got, strict=True):
            tokens += next(stream).token_ids
    with pytest.raises(SessionBusyError):
        first.append([1])
    (beside,) = llm.generate(INPUTS[3], GREEDY, use_tqdm=False)
    assert beside.outputs[0].token_ids == hf_greedy(directory, INPUTS[3], NEW_TOKENS)
    for stream, tokens in zip(streams, got, strict=True):
        for delta in stream:
            tokens += delta.token_ids
    assert got == [hf_greedy(directory, INPUTS[i], NEW_TOKENS) for i in (0, 2)]
    first.close()
    second.close()
    check_nothing_leaked(llm)


def test_a_stream_that_is_closed_leaves_its_tokens(model_dir: ModelDir) -> None:
    directory, llm = model_dir("llama"), make_llm(model_dir("llama"))
    with llm.open_session() as session:
        session.append(INPUTS[0])
        stream = session.stream(GREEDY)
        tokens = [next(stream).token_ids[0] for _ in range(5)]
        stream.close()
        assert session.token_ids == [*INPUTS[0], *tokens]
        rest = session.generate(GREEDY).outputs[0].token_ids
        assert [*tokens, *rest] == hf_greedy(directory, INPUTS[0], 5 + NEW_TOKENS)
        assert not llm.engine.has_work


def test_the_text_of_turns_joins_up() -> None:
    """Spaces between two turns are as in one text: here the demonstration model's."""
    llm = LLM(kv_cache_memory_bytes="8MiB")
    with llm.open_session() as session:
        session.append("Once upon a time")
        one_by_one = [continue_by(1, session) for _ in range(24)]
    (whole,) = llm.generate(
        "Once upon a time",
        SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True),
        use_tqdm=False,
    )
    assert "".join(one_by_one) == whole.outputs[0].text


def continue_by(count: int, session: StreamingSession) -> str:
    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    return session.generate(params).outputs[0].text


def test_penalties_see_their_own_turn(model_dir: ModelDir) -> None:
    llm = make_llm(model_dir("llama"))
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, repetition_penalty=1.8)
    with llm.open_session() as session:
        session.append(INPUTS[0])
        first = session.generate(params).outputs[0].token_ids
        (whole,) = llm.generate(INPUTS[0], params, use_tqdm=False)
        assert first == whole.outputs[0].token_ids


def test_without_a_window_a_session_is_as_long_as_a_sequence(model_dir: ModelDir) -> None:
    llm = make_llm(model_dir("llama"), max_model_len=64)
    with llm.open_session() as session:
        session.append([5] * 40)
        session.generate(SamplingParams(max_tokens=4, ignore_eos=True))
        with pytest.raises(RequestError, match="has 44 tokens, so that 20 more leave no room"):
            session.append([5] * 20)
        with pytest.raises(RequestError, match="max_tokens is 30, but max_model_len 64 leaves"):
            session.generate(SamplingParams(max_tokens=30))
        session.recompute(10)
        session.append([5] * 20)
        assert len(session.token_ids) == 30
        output = session.generate(SamplingParams(max_tokens=None, ignore_eos=True))
        assert len(output.outputs[0].token_ids) == 34


def test_sessions_that_nobody_uses_make_room(model_dir: ModelDir) -> None:
    llm = make_llm(model_dir("llama"), max_num_sessions=2, session_timeout=60)
    now = [0.0]
    llm.engine.sessions._clock = lambda: now[0]
    old, used = llm.open_session(), llm.open_session()
    now[0] = 50.0
    used.append([1])
    with pytest.raises(RequestError, match="max_num_sessions, 2"):
        llm.open_session()
    now[0] = 61.0
    llm.open_session()
    with pytest.raises(UnknownSessionError):
        old.append([1])
    used.append([2])


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("dynamic", {"max_model_len": 64}, "rotary scaling depends on the length"),
    ],
)
def test_where_there_are_no_sessions(
    family: str, options: dict[str, Any], message: str, model_dir: ModelDir
) -> None:
    with pytest.raises(RequestError, match=message):
        make_llm(model_dir(family), **options).open_session()


@pytest.mark.parametrize(
    ("given", "message"),
    [("", "must not be empty"), ([], "must not be empty"), ([999], "outside the vocabulary"),
     (["a"], "must hold token ids"), (7, "must be a text or a list"), ("\ud800", "Unicode")],
)  # fmt: skip
def test_bad_input_is_refused(given: Any, message: str, model_dir: ModelDir) -> None:
    with make_llm(model_dir("llama")).open_session() as session:
        with pytest.raises(RequestError, match=message) as refused:
            session.append(given)
        assert refused.value.field == "input"
        assert session.token_ids == []


def test_session_settings_are_checked() -> None:
    for options in ({"max_num_sessions": 0}, {"session_timeout": -1}, {"session_timeout": None}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            LLM(**options)

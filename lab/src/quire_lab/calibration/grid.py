"""The scenarios of calibration: few and many users, short and long prompts, pauses, and drafts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from quire.core.scheduling import Scheduler
from quire.engine.capacity import Capacity
from quire.engine.config import EngineConfig
from quire.execution.kv_bytes import least_blocks
from quire.text.params import SamplingParams
from quire_lab.calibration.steps import TimedStep
from quire_lab.calibration.watch import WatchedEngine

_USERS = (1, 2, 4, 8, 16, 32, 64, 128)
_LENGTHS = (8, 24, 64, 160, 320, 640, 1280, 2000)
_DRAFTED_USERS, _DRAFTED_LENGTHS = (1, 4, 16), (24, 320, 1280)  # with whom drafts are verified
_DRAFTS = (1, 7, 3, 15, 2, 5, 10, 16)  # of each sequence, from step to step
_OUTPUT = 24  # tokens, up to twice as many
_MOST_TOKENS = 20_000  # of all prompts that are served together
_PAUSES = 4
_BREAK = 0.1  # seconds: long enough for caches to be taken by others and cores to sleep


class Scenario(NamedTuple):
    """Users who each send two requests, one after the other; or one, who pauses before each.

    drafts: each step verifies some, which are wrong.
    """

    users: int
    prompt_tokens: int
    pauses: bool = False
    drafts: bool = False

    def __str__(self) -> str:
        who = f"{self.users} users" if self.users > 1 else "a user who pauses" * self.pauses
        text = f"{who or 'one user'}, prompts of about {self.prompt_tokens:,} tokens"
        return text + ", drafts" * self.drafts

    @property
    def num_requests(self) -> int:
        return _PAUSES if self.pauses else 2 * self.users

    def lengths(self) -> Iterator[tuple[int, int]]:
        """Tokens in and out of each request.

        No two of a wave are alike, so prefills come among others' decoding, and batches of every
        size are seen as a wave ends.
        """
        spread = max(1, self.prompt_tokens // 4)
        for i in range(self.num_requests):
            yield self.prompt_tokens - i * 7 % spread, _OUTPUT + i * 5 % _OUTPUT


def grid(config: EngineConfig, capacity: Capacity) -> list[Scenario]:
    """Scenarios as far as the pool and the limits go; the fullest pool for every length."""
    tokens = least_blocks(capacity.kv_groups) * config.block_size
    longest = tokens if capacity.max_model_len is None else capacity.max_model_len
    scenarios = []
    for length in _LENGTHS:
        whole = length + 2 * _OUTPUT
        if whole > longest:
            continue
        fitting = min(tokens // (whole + config.block_size), config.max_num_seqs)
        fitting = min(fitting, _USERS[-1], _MOST_TOKENS // length)
        users = {count for count in _USERS if count <= fitting} | ({fitting} - {0})
        scenarios += [Scenario(count, length) for count in sorted(users)]
        if fitting:
            scenarios.append(Scenario(1, length, pauses=True))
        if length in _DRAFTED_LENGTHS:
            drafted = [count for count in _DRAFTED_USERS if count <= fitting]
            scenarios += [Scenario(count, length, drafts=True) for count in drafted]
    return scenarios


def serve(watched: WatchedEngine, scenario: Scenario, random: Random) -> list[TimedStep]:
    """Serve a scenario with random tokens; its steps, or after pauses the first ones only.

    Further steps are faster from one to the next as caches warm up, which no figure of work shows.
    """
    engine = watched.engine
    vocabulary = engine.input_processor.vocab_size
    coming = list(enumerate(scenario.lengths()))
    running, before = 0, len(watched.steps)
    while coming or engine.has_work:
        woken = scenario.pauses and not engine.has_work
        if woken:
            time.sleep(_BREAK)
        while coming and running < scenario.users:
            number, (tokens_in, tokens_out) = coming.pop(0)
            prompt = [random.randrange(vocabulary) for _ in range(tokens_in)]
            params = SamplingParams(max_tokens=tokens_out, ignore_eos=True)
            engine.add_request(str(number), prompt, params)
            running += 1
        if scenario.drafts:
            count = _DRAFTS[len(watched.steps) % len(_DRAFTS)]
            _propose(engine.scheduler, [random.randrange(vocabulary) for _ in range(count)])
        running -= sum(delta.final is not None for delta in watched.step(woken=woken))
    steps = watched.steps[before:]
    return [step for step in steps if step.work.woken or not scenario.pauses]


def _propose(scheduler: Scheduler, drafts: list[int]) -> None:
    for group in scheduler.running:
        for branch in group.branches:
            scheduler.propose(branch.seq_id, drafts)

"""Sessions over the fake model, turn by turn."""

from __future__ import annotations

from quire.capabilities.sessions import Ring, SessionManager, SessionRules
from quire.core.memory import PagedAllocator, Window
from quire.core.protocol import PreemptionMode, Request
from quire.core.scheduling import Hooks
from quire.text.params import SamplingParams
from support.fake_model import FULL, FakeExecutor, FakeLayer, Sight, Windows, expected_turn
from support.outcomes import take_in
from support.schedulers import make_scheduler


class Talk:
    """A scheduler over the fake model, driven turn by turn."""

    def __init__(
        self, num_blocks: int = 32, host_blocks: int = 0, sight: Sight = FULL[0], **options: int
    ) -> None:
        self.windows: Windows = (sight,)
        window = None if sight.window is None else Window(sight.window, 16, sight.sinks)
        allocator = PagedAllocator(num_blocks, 4, host_blocks, window)
        mode = PreemptionMode.SWAP if host_blocks else PreemptionMode.RECOMPUTE
        self.scheduler = make_scheduler(allocator, 4, 16, mode=mode)
        self.sessions = SessionManager(SessionRules(ring=Ring(sight.sinks), **options))
        self.sessions.engine_begins(self.scheduler, Hooks())
        self.executor = FakeExecutor(num_blocks, 4, host_blocks)
        self.executor.layers = [FakeLayer(num_blocks, 4, host_blocks, sight)]
        self.num_turns = 0
        self.decisions: list[str] = []
        self.width = 0  # most blocks of a table

    def turn(self, name: str, max_tokens: int = 6, **params: object) -> Request:
        """Queue a turn of a session."""
        self.num_turns += 1
        request = Request(
            f"t{self.num_turns}",
            self.sessions.get(name).input_token_ids,
            SamplingParams(max_tokens=max_tokens, **params),  # type: ignore[arg-type]
            max_tokens,
            seed=self.num_turns,
        )
        self.sessions.add_turn(name, self.sessions.get(name).history, request)
        return request

    def add(self, name: str, prompt: list[int], max_tokens: int = 6) -> None:
        params = SamplingParams(max_tokens=max_tokens)
        self.scheduler.add(Request(name, tuple(prompt), params, max_tokens, seed=0))

    def steps(self, count: int = 10_000) -> dict[str, list[int]]:
        """Run on, until all is done: the tokens that came, by request."""
        outputs: dict[str, list[int]] = {}
        while self.scheduler.has_work and count:
            count -= 1
            step = self.scheduler.schedule(0.0)
            self.decisions += map(str, step.decisions)
            self.width = max([self.width, *(len(c.table.block_ids) for c in step.chunks)])
            for progress in take_in(self.scheduler, step, self.executor.execute(step), 0.0):
                name = progress.request.request_id
                outputs.setdefault(name, []).append(progress.sample.token_id)
        return outputs

    def say(self, name: str, tokens: list[int], max_tokens: int = 6) -> list[int]:
        """Append, generate, and check what comes."""
        history = [*self.sessions.get(name).history, *tokens]
        self.sessions.append(name, tokens)
        request = self.turn(name, max_tokens)
        output = self.steps()[request.request_id]
        session = self.sessions.get(name)
        assert output == expected_turn(history, request, self.windows, session.soft_cuts)
        assert list(session.history) == [*history, *output]
        return output

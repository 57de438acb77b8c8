"""Finds the steps that only decode, or mostly: see ``SteadyDecoding``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from quire.core.limits import EngineLimits
from quire.core.protocol import Progress, SchedulingPolicy, Step, Verdict
from quire.core.scheduling import Scheduler
from quire_lab.simulation.live import LiveRequest
from quire_lab.simulation.steady_decoding import NEXT, SteadyDecoding, only_decodes


class FastForward:
    """Finds the scheduler's groups that only decode. It must see every step.

    mixes: whether others may be prefilled and admitted beside them.
    """

    def __init__(
        self, scheduler: Scheduler, limits: EngineLimits, live: Mapping[str, LiveRequest]
    ) -> None:
        self._scheduler = scheduler
        self._live = live
        self._limits = limits
        # Whether the next one may change though no request comes or ends, or it may be passed.
        fair = limits.scheduling_policy == SchedulingPolicy.FAIR.value
        self._time_matters = fair or limits.max_queue_time is not None or limits.max_loras > 0
        # Or room comes without one: windows leave blocks behind.
        self._time_matters |= any(one.kept.forgets for one in limits.kv_groups)
        self.mixes = not fair  # else each token counts for the choice of the next one
        self._blocked: str | None = None  # kept waiting by the last step, and nothing freed since
        self._may_fork = False  # the last step may have led to forks, whose moves are to come

    def note(self, step: Step, progress: Iterable[Progress]) -> None:
        """The scheduler has made this step, and this came of it."""
        waits = [d.request_id for d in step.decisions if d.what is Verdict.WAIT]
        ended = any(one.finish_reason is not None for one in progress)
        self._blocked = waits[-1] if waits and not ended else None
        self._may_fork = any(chunk.readout != NEXT for chunk in step.chunks)

    def begin(self, now: float, *, mixes: bool) -> SteadyDecoding | None:
        """The first groups in the queue that only decode from ``now`` on; None: there are none.

        mixes: although others may have to be prefilled and admitted beside them.
        """
        scheduler, running = self._scheduler, self._scheduler.running
        if scheduler.sessions or not running:
            return None
        if not only_decodes(running[0] if mixes else running[-1]):
            return None
        steady = SteadyDecoding(scheduler, self._live, self._limits)
        return steady if self.goes_on(steady, now, mixes=mixes) else None

    def goes_on(self, steady: SteadyDecoding, now: float, *, mixes: bool) -> bool:
        """Whether all of these get a token in the next step, with those that join them."""
        budget = self._scheduler.batch.max_num_batched_tokens
        if not steady.join(now) or not 0 < len(steady) <= budget or not steady.can_step:
            return False
        return mixes or self.is_alone(steady)

    def is_alone(self, steady: SteadyDecoding) -> bool:
        """Whether no other group has a part in the next steps, until a request comes or a text
        ends.
        """
        scheduler = self._scheduler
        if self._may_fork or steady.num_groups < len(scheduler.running) or steady.copies:
            return False
        first = scheduler.queue.first()
        if first is None:
            return True
        if self._time_matters or first.request.request_id != self._blocked:
            return False
        return len(steady) < scheduler.batch.max_num_batched_tokens  # what is left is offered

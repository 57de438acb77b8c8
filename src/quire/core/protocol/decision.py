"""What the scheduler decided about a request, and the figures it had."""

from __future__ import annotations

from enum import Enum
from typing import Literal, NamedTuple


class Verdict(Enum):
    ADMIT = "admit"
    WAIT = "wait"
    SWAP = "swap"  # preempted: its blocks go to the host
    RECOMPUTE = "recompute"  # preempted: its blocks are freed, and computed again later
    RESUME = "resume"  # back from the host
    REFUSE = "refuse"  # it could never run to its end
    EXPIRE = "expire"  # it waited too long to be let in
    DRAFT = "draft"  # so many tokens are guessed for it each step, from now on

    @property
    def preempts(self) -> bool:
        return self in (Verdict.SWAP, Verdict.RECOMPUTE)


class Decision(NamedTuple):
    """One decision. Figures are None where they played no part."""

    what: Verdict
    request_id: str
    why: str
    needed: int | None = None  # of what ``unit`` says
    free: int | None = None  # likewise
    swap_seconds: float | None = None  # what swapping the victim out and in costs
    recompute_seconds: float | None = None  # what computing its tokens again costs
    remedy: str | None = None  # the setting that would have avoided it
    unit: Literal["blocks", "sequences"] = "blocks"  # sequences: where max_num_seqs is what binds

    def __str__(self) -> str:
        text = f"{self.what.value} {self.request_id}: {self.why}"
        if self.needed is not None:
            text += f"; {self.needed} needed, {self.free} free"
        if self.swap_seconds is not None and self.recompute_seconds is not None:
            text += (
                f"; swapping costs {self.swap_seconds * 1e3:.3g} ms, "
                f"recomputing {self.recompute_seconds * 1e3:.3g} ms"
            )
        return text if self.remedy is None else f"{text} (avoided by {self.remedy})"

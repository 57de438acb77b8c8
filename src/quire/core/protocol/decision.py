"""How requests are scheduled: the policies, what they weigh, and what was decided and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple


class SchedulingPolicy(str, Enum):
    FCFS = "fcfs"
    PRIORITY = "priority"
    FAIR = "fair"


class PreemptionMode(str, Enum):
    AUTO = "auto"  # whichever costs less for this victim
    SWAP = "swap"
    RECOMPUTE = "recompute"


@dataclass(frozen=True)
class RecoveryCosts:
    """What having blocks again costs on this machine, in seconds."""

    swap_per_block: float = 0.0  # one way
    recompute_per_token: float = 0.0
    fetch_per_block: float = 0.0  # from a source of blocks
    swap_per_state: float = 0.0  # one way; 0: layers keep none

    def fetching_pays(self, block_size: int) -> bool:
        """Whether a block is fetched in less time than its tokens are computed in."""
        return self.fetch_per_block <= block_size * self.recompute_per_token


class Verdict(Enum):
    ADMIT = "admit"
    WAIT = "wait"
    SWAP = "swap"  # preempted: its blocks go to the host
    RECOMPUTE = "recompute"  # preempted: its blocks are freed, and computed again later
    RESUME = "resume"  # back from the host
    REFUSE = "refuse"  # it could never run to its end
    EXPIRE = "expire"  # it waited too long to be let in
    SIT_OUT = "sit_out"  # there is no time for it: it sits steps out
    DRAFT = "draft"  # how many tokens are guessed for it in each step from now on

    def __init__(self, value: str) -> None:
        self.preempts = value in ("swap", "recompute")


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
    # pages: where KV groups share them. sequences: where max_num_seqs is what binds
    unit: Literal["blocks", "pages", "sequences"] = "blocks"

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

"""A sequence and its forks in contiguous memory: where each is, and what it has cost."""

from __future__ import annotations

from typing import NamedTuple

from quire.core.memory.values import BlockTable


class Terms(NamedTuple):
    """The terms on which a family of branches was admitted."""

    known: int  # tokens of its longest branch at admission
    longest: int  # tokens that a branch can have at most
    width: int  # branches at one time


class RegionFamily:
    """A sequence and its forks, and the regions they hold: ``width`` of one size, or none.

    Contiguous memory cannot be shared, so each fork needs a region of its own. All of them are
    taken at admission, for a fork must not run out. They are of one size, so that any of them
    can take in a copy of any branch.
    """

    def __init__(self, terms: Terms, order: int, spares: list[int]) -> None:
        self.terms = terms
        self.order = order  # of its regions: 2**order blocks each
        self.spares = spares  # first blocks of the regions that no branch is in
        self.num_to_come = terms.width  # branches that were promised and have not come yet
        self.branches: dict[int, Branch] = {}  # by seq_id, swapped out or not
        self.charged = 0.0  # block-seconds to each branch that has been resident all along
        self.charged_until = 0.0  # seconds

    @property
    def residents(self) -> list[Branch]:
        """Branches that are on the device. While there are any, the family has its regions."""
        return [branch for branch in self.branches.values() if branch.start is not None]

    def charged_at(self, now: float) -> float:
        """``charged``, with the time since it was last brought up to date."""
        blocks = self.terms.width << self.order
        return self.charged + (now - self.charged_until) * blocks / len(self.residents)


class Branch:
    """One sequence: in a region of the device, or (swapped out) in blocks of the host."""

    __slots__ = ("charge", "entry", "family", "host_blocks", "num_tokens", "start", "view")

    def __init__(self, family: RegionFamily, num_tokens: int) -> None:
        self.family = family
        self.num_tokens = num_tokens
        self.start: int | None = None  # first block of its region; None when swapped out
        self.host_blocks: tuple[int, ...] = ()
        self.view: BlockTable | None = None  # its region's blocks; None once it has moved
        self.entry = 0.0  # family.charged when it came to the device
        self.charge = 0.0  # block-seconds, for the times before that

    def arrive(self, start: int) -> None:
        self.start, self.host_blocks, self.view = start, (), None
        self.entry = self.family.charged

    def charge_at(self, now: float) -> float:
        """The charge of a branch on the device by ``now``."""
        return self.charge + self.family.charged_at(now) - self.entry

    def leave(self, host_blocks: tuple[int, ...]) -> None:
        self.start, self.host_blocks, self.view = None, host_blocks, None
        self.charge += self.family.charged - self.entry

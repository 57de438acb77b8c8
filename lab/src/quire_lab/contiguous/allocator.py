"""Contiguous reservation, the memory of the systems that PagedAttention is compared with.

The baselines of Kwon et al. (SOSP 2023, section 6.1), "Orca (Max)", "Orca (Pow2)" and "Orca
(Oracle)", behind the same verbs as the paged allocator: a region of memory is a block table with
consecutive ids, so the same scheduler and the same kernels run on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum

from quire.core.memory.blocks import BlockMove, MoveKind
from quire.core.memory.pool import BlockPool
from quire.core.memory.values import BlockTable, Demand, Fit, Unit, Usage, When
from quire.core.memory.views import PoolView
from quire_lab.contiguous.buddy import BuddyRegions, next_power_of_two
from quire_lab.contiguous.family import Branch, RegionFamily, Terms
from quire_lab.contiguous.view import RegionView


class Reservation(Enum):
    """How many tokens a sequence reserves room for, its future output included."""

    MAX = "max"  # as many as the model can take
    POW2 = "pow2"  # what admission knew, and a power of two of what was generated since
    ORACLE = "oracle"  # as many as it will have in the end (Demand.longest)


class ContiguousAllocator:
    """A region of consecutive blocks for each sequence, reserved ahead, from a buddy system.

    Nothing is shared and nothing is found again: forks copy, and admission finds no token cached.
    Under POW2, what admission knew counts as the prompt; the output's part doubles as it is
    outgrown, and the sequence moves to a larger region. A region is never larger than an even
    share of the pool among a family's branches. So a family that is alone can always grow: all
    but one of ``width`` regions leave one such share untouched, and there are ``width`` shares.
    """

    contents = None  # nothing is found again
    unit: Unit = "blocks"

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        policy: Reservation,
        max_model_len: int,
        num_host_blocks: int = 0,
    ) -> None:
        if min(num_blocks, block_size, max_model_len) < 1 or num_host_blocks < 0:
            raise ValueError(
                "num_blocks, block_size and max_model_len must be at least 1, num_host_blocks at "
                f"least 0; got {num_blocks}, {block_size}, {max_model_len}, {num_host_blocks}"
            )
        self.block_size = block_size
        self.policy = policy
        self.max_model_len = max_model_len
        self.device = BuddyRegions(num_blocks)
        self.host = BlockPool(num_host_blocks)
        self.branches: dict[int, Branch] = {}
        self._used = 0  # tokens on the device
        self._reserved = 0  # tokens that are promised to regions and not there yet
        self._refused_order: int | None = None  # of the regions that were last asked for in vain
        self._now = 0.0  # seconds

    @property
    def num_free_blocks(self) -> int:
        return self.device.num_free

    def advance(self, now: float) -> None:
        self._now = now

    def fit(self, demand: Demand) -> Fit:
        """See the protocol. ``needed`` blocks may be free and the answer LATER: in small pieces."""
        terms = self._terms(demand)
        free, capacity = self.device.num_free, self.device.num_blocks
        most = self._order_for(self._in_the_end(terms))
        if most > self._share(terms.width):
            return Fit(When.NEVER, terms.width << most, free, capacity)
        order = self._order(terms, terms.known)
        needed = (terms.width << order) + self._headroom(demand.headroom)
        fits = needed <= free and terms.width <= self.device.num_available(order)
        return Fit(When.NOW if fits else When.LATER, needed, free, capacity)

    def admit(self, seq_id: int, demand: Demand) -> int | None:
        """Reserve regions for the sequence and all its forks. Never finds a token: returns 0."""
        self._refuse_known(seq_id)
        terms = self._terms(demand)
        order = self._order(terms, terms.known)
        if self.fit(demand).when is not When.NOW:
            self._refused_order = order
            return None
        self._refused_order = None
        regions = self.device.exchange([(None, order)] * terms.width)
        assert regions is not None, "fit has counted them"
        self._enter(RegionFamily(terms, order, regions[::-1]), seq_id, 0)
        return 0

    def blocks_to_append(self, new_tokens: Mapping[int, int]) -> int:
        return sum(
            family.terms.width * ((1 << order) - (1 << family.order))
            for family, order in self._outgrown(new_tokens).items()
        )

    def append(
        self, new_tokens: Mapping[int, int], group: Collection[int] = ()
    ) -> list[BlockMove] | None:
        """Fill regions. Families that outgrow theirs (POW2) move to larger ones, all or none."""
        moves = self._enlarge(self._outgrown(new_tokens))
        if moves is None:
            return None
        for seq_id, count in new_tokens.items():
            self._fill(seq_id, count)
        return moves

    def draft(self, seq_id: int, count: int) -> bool:
        """False where the sequence would have to move to a larger region."""
        if self._outgrown({seq_id: count}):
            return False
        self._fill(seq_id, count)
        return True

    def trim(self, seq_id: int, num_tokens: int) -> None:
        self._fill(seq_id, num_tokens - self.branches[seq_id].num_tokens)

    def fork(self, parent_id: int, child_id: int) -> list[BlockMove]:
        """A copy of the parent in a spare region of its family; to be made before all else."""
        self._refuse_known(child_id)
        parent = self.branches[parent_id]
        family, width = parent.family, parent.family.terms.width
        if parent.start is None or len(family.branches) >= width:
            raise ValueError(
                f"sequence {parent_id} cannot fork: it is swapped out, or it was admitted for "
                f"{width} branches at one time and has {len(family.branches)}"
            )
        child = self._enter(family, child_id, parent.num_tokens)
        return _moves(MoveKind.COPY, self._filled(parent), self._filled(child))

    def keep(self, seq_id: int, num_tokens: int, seconds: float) -> None:
        """Nothing is found again, so nothing is kept."""

    def free(self, seq_id: int, *, invalid: bool = False) -> float:
        """Give a region back to its family, for forks to come; the last branch gives back all.

        A branch is charged for its region, and for its share of those that the family keeps.
        """
        branch = self.branches.pop(seq_id)
        if branch.start is not None:
            self._leave(branch)
        for block in branch.host_blocks:
            self.host.release(block)
        del branch.family.branches[seq_id]
        return branch.charge

    def charge(self, seq_id: int) -> float:
        branch = self.branches[seq_id]
        return branch.charge if branch.start is None else branch.charge_at(self._now)

    def swap_out(self, seq_ids: Iterable[int]) -> list[BlockMove] | None:
        branches = [self.branches[seq_id] for seq_id in seq_ids]
        if sum(self._blocks_for(b.num_tokens) for b in branches) > self.host.num_free:
            return None
        moves: list[BlockMove] = []
        for branch in branches:
            filled = self._filled(branch)
            self._leave(branch, tuple(self.host.take() for _ in filled))
            moves += _moves(MoveKind.SWAP_OUT, filled, branch.host_blocks)
        return moves

    def _orders_to_return(self, branches: Iterable[Branch]) -> dict[RegionFamily, int]:
        """Of the regions of each family of these, of which none is here."""
        families = {branch.family: None for branch in branches}
        absent = (family for family in families if not family.residents)
        return {family: self._order_to_return(family) for family in absent}

    def blocks_to_swap_in(self, seq_ids: Iterable[int], headroom: int = 0) -> int:
        orders = self._orders_to_return(self.branches[seq_id] for seq_id in seq_ids)
        regions = sum(family.terms.width << order for family, order in orders.items())
        return regions + self._headroom(headroom)

    def swap_in(self, seq_ids: Iterable[int], headroom: int = 0) -> list[BlockMove] | None:
        """Bring sequences back, into regions in which each can have a token more at once.

        A family that was preempted because it had outgrown its regions comes back to larger ones.
        """
        ids = list(seq_ids)
        branches = [self.branches[seq_id] for seq_id in ids]
        orders = self._orders_to_return(branches)
        steps = [
            (None, order) for family, order in orders.items() for _ in range(family.terms.width)
        ]
        fits = self.blocks_to_swap_in(ids, headroom) <= self.device.num_free
        regions = self.device.exchange(steps) if fits else None
        if regions is None:
            return None
        for family, order in orders.items():
            family.order = order
            family.spares = [regions.pop(0) for _ in range(family.terms.width)]
        moves: list[BlockMove] = []
        for branch in branches:
            host_blocks = branch.host_blocks
            self._count(branch.family, -1)
            branch.arrive(branch.family.spares.pop())
            self._count(branch.family, 1)
            moves += _moves(MoveKind.SWAP_IN, host_blocks, self._filled(branch))
            for block in host_blocks:
                self.host.release(block)
        return moves

    def table(self, seq_id: int) -> BlockTable:
        """The whole region, what is only reserved included."""
        branch = self.branches[seq_id]
        if branch.start is None:
            return BlockTable(branch.host_blocks, self.block_size)
        if branch.view is None:
            end = branch.start + (1 << branch.family.order)
            branch.view = BlockTable(tuple(range(branch.start, end)), self.block_size)
        return branch.view

    def num_tokens(self, seq_id: int) -> int:
        return self.branches[seq_id].num_tokens

    def blocks_held(self, seq_ids: Sequence[int]) -> tuple[int, int]:
        """Blocks of these sequences' regions and of those that their families keep for forks; 0."""
        branches = [self.branches[seq_id] for seq_id in seq_ids]
        regions = [b.family.order for b in branches if b.start is not None]
        for family in {branch.family for branch in branches}:
            regions += [family.order] * len(family.spares)
        return sum(1 << order for order in regions), 0

    def views(self) -> tuple[PoolView, ...]:
        return (RegionView(self.device, self.branches, self.block_size),)

    def audit(self, known: Collection[int]) -> list[str]:
        lost = [seq_id for seq_id in self.branches if seq_id not in known]
        for seq_id in lost:
            self.free(seq_id)
        return [f"sequence {seq_id} had a region, and nobody who would free it" for seq_id in lost]

    def usage(self) -> Usage:
        size, device = self.block_size, self.device
        held = (device.num_blocks - device.num_free) * size
        external = 0
        if self._refused_order is not None:
            external = device.num_scattered(self._refused_order) * size
        return Usage(
            used=self._used,
            reserved=self._reserved,
            internal=held - self._used - self._reserved,
            external=external,
            cached=0,
            free=device.num_free * size - external,
        )

    # -- sizes ---------------------------------------------------------------------------------

    def _terms(self, demand: Demand) -> Terms:
        known = max(demand.num_tokens, *(total for _, total in demand.forks), 0)
        longest = max(demand.longest, known)
        if longest > self.max_model_len:
            raise ValueError(
                f"a sequence has at most max_model_len tokens, {self.max_model_len}; the demand "
                f"is for {longest}"
            )
        return Terms(known, longest, demand.width)

    def _order(self, terms: Terms, num_tokens: int) -> int:
        """The order of a family's regions when its longest branch has ``num_tokens``."""
        reserved = self._in_the_end(terms)
        if self.policy is Reservation.POW2:
            output = next_power_of_two(num_tokens - terms.known)
            reserved = min(terms.known + output, self.max_model_len)
        return min(self._order_for(reserved), self._share(terms.width))

    def _in_the_end(self, terms: Terms) -> int:
        return self.max_model_len if self.policy is Reservation.MAX else terms.longest

    def _order_to_return(self, family: RegionFamily) -> int:
        most = max(branch.num_tokens for branch in family.branches.values())
        return max(family.order, self._order(family.terms, min(most + 1, family.terms.longest)))

    def _order_for(self, num_tokens: int) -> int:
        return (self._blocks_for(num_tokens) - 1).bit_length()

    def _headroom(self, blocks: int) -> int:
        # Only POW2 takes more blocks for those that run. To leave some free under the others
        # would keep the last region of a pool empty for nothing.
        return blocks if self.policy is Reservation.POW2 else 0

    def _share(self, width: int) -> int:
        """The largest order of which an empty pool has ``width`` regions; -1 if of none."""
        return (self.device.num_blocks // width).bit_length() - 1

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    # -- regions -------------------------------------------------------------------------------

    def _outgrown(self, new_tokens: Mapping[int, int]) -> dict[RegionFamily, int]:
        """Families that must move to serve ``new_tokens``, and the order that they need then."""
        tokens: dict[RegionFamily, int] = {}
        for seq_id, count in new_tokens.items():
            branch = self.branches[seq_id]
            family, after = branch.family, branch.num_tokens + count
            if after > family.terms.longest:
                raise ValueError(
                    f"sequence {seq_id} was admitted for at most {family.terms.longest} tokens; "
                    f"it cannot have {after}"
                )
            tokens[family] = max(after, tokens.get(family, 0))
        orders = {family: self._order(family.terms, most) for family, most in tokens.items()}
        return {family: order for family, order in orders.items() if order > family.order}

    def _enlarge(self, orders: Mapping[RegionFamily, int]) -> list[BlockMove] | None:
        """Move families to regions of these orders, all of them or none.

        One branch after the other: a larger region may cover the old place of its own branch and
        of those that have moved on before, but of none that is still to be copied. Within a
        branch any order will do: regions are aligned to their size, so the blocks stay where they
        are or move by at least the size of the old region.
        """
        steps: list[tuple[int | None, int | None]] = []
        for family, order in orders.items():
            steps += [(spare, None) for spare in family.spares]  # nothing is in them
            steps += [(branch.start, order) for branch in family.residents]
            steps += [(None, order)] * len(family.spares)
        taken = self.device.exchange(steps)
        if taken is None:
            return None
        moves: list[BlockMove] = []
        for family, order in orders.items():
            self._count(family, -1)
            family.order = order
            for branch in family.residents:
                filled = self._filled(branch)
                branch.start, branch.view = taken.pop(0), None
                moves += _moves(MoveKind.COPY, filled, self._filled(branch))
            family.spares = [taken.pop(0) for _ in family.spares]
            self._count(family, 1)
        return moves

    # -- bookkeeping ---------------------------------------------------------------------------

    def _fill(self, seq_id: int, count: int) -> None:
        """Count this many more tokens of a sequence; fewer, if negative."""
        self.branches[seq_id].num_tokens += count
        self._used += count
        self._reserved -= count

    def _filled(self, branch: Branch) -> range:
        """The device blocks that hold the branch's tokens."""
        assert branch.start is not None
        return range(branch.start, branch.start + self._blocks_for(branch.num_tokens))

    def _enter(self, family: RegionFamily, seq_id: int, num_tokens: int) -> Branch:
        """A new branch, in a region that its family has to spare."""
        branch = Branch(family, num_tokens)
        self._count(family, -1)
        family.branches[seq_id] = self.branches[seq_id] = branch
        family.num_to_come = max(0, family.num_to_come - 1)
        branch.arrive(family.spares.pop())
        self._count(family, 1)
        return branch

    def _leave(self, branch: Branch, host_blocks: tuple[int, ...] = ()) -> None:
        """A branch leaves its region to its family; with the last one all go to the pool."""
        family = branch.family
        assert branch.start is not None, "swapped out already"
        self._count(family, -1)
        family.spares.append(branch.start)
        branch.leave(host_blocks)
        if not family.residents:
            for spare in family.spares:
                self.device.release(spare)
            family.spares = []
        self._count(family, 1)
        if self.device.num_free == self.device.num_blocks:
            self._refused_order = None  # a refused sequence would fit now

    def _count(self, family: RegionFamily, sign: int) -> None:
        """Count a family out (-1) before it changes what it holds, and in again (1) after."""
        residents = family.residents
        if sign == 1:
            family.charged_until = self._now
        if not residents:
            return
        family.charged = family.charged_at(self._now)
        family.charged_until = self._now
        used = sum(branch.num_tokens for branch in residents)
        # A fork to come is promised as much as existing ones. A region that a branch has
        # left is not promised, until another fork takes it.
        each = min(family.terms.longest, self.block_size << family.order)
        promised = each * (len(residents) + family.num_to_come)
        self._used += sign * used
        self._reserved += sign * (promised - used)

    def _refuse_known(self, seq_id: int) -> None:
        if seq_id in self.branches:
            raise ValueError(f"sequence {seq_id} already has a region")


def _moves(kind: MoveKind, sources: Sequence[int], targets: Sequence[int]) -> list[BlockMove]:
    if sources == targets:
        return []  # the larger region begins where the old one did
    return [BlockMove(kind, *pair) for pair in zip(sources, targets, strict=True)]

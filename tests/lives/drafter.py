"""A draft model in a life: further slots of the same blocks, and what is written there when."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Protocol

from quire.capabilities.speculation.behind import Behind
from quire.core.memory import BlockMove, BlockTable, MoveKind
from quire.core.protocol import TO_DRAFT, Chunk, Outcome, Readout, Step


class Keys(Protocol):
    """Slots of the blocks of one KV group."""

    device: list[list[int]]
    host: list[list[int]]

    def write(self, table: BlockTable, start: int, keys: Sequence[int], drafts: int) -> None: ...

    def leave(self, start: int, keys: Sequence[int], left: Sequence[tuple[int, int]]) -> None: ...

    def kept(self, move: BlockMove) -> list[int]: ...

    def wrong(self, table: BlockTable, keys: Sequence[int], start: int, end: int) -> int | None: ...


class Known(Protocol):
    """A text, as far as it is known."""

    keys: list[int]

    def right(self, start: int, token_ids: Sequence[int]) -> int:
        """How many of these, the first ones, are the text's tokens from ``start`` on."""
        ...


class Drafter:
    """Does what ``DraftModel`` does, in its order, and asserts that whatever it reads is its own.

    pools: its slots, by KV group. The last are slots of states, if it keeps some; the target's
        states alone have no part of it.
    lost: what slots hold of moves and steps that failed, which spoils what is made of it.
    """

    def __init__(
        self, pools: Sequence[Keys], lost: Sequence[int], rng: random.Random, *, keeps_states: bool
    ) -> None:
        self.behind = Behind(keeps_states=keeps_states)
        self.num_computed = self.num_left = 0
        self._pools, self._lost, self._rng = pools, lost, rng
        self._texts: dict[int, Known] = {}
        self._stored: dict[tuple[int, bytes], list[int]] = {}
        self._drafted: set[int] = set()

    def guess(self, chunk: Chunk, text: Known, right: float, vocab: int) -> Chunk:
        """The chunk with drafts in the places of those that are to be made, or fewer."""
        if chunk.token_ids[-1] != TO_DRAFT:
            return chunk
        known = chunk.token_ids.index(TO_DRAFT)
        token_ids, readout = [*chunk.token_ids[:known]], chunk.readout
        assert readout is not None
        for _ in range(self._rng.randint(0, len(chunk.token_ids) - known)):
            position, guesses = chunk.start + len(token_ids), range(vocab)
            own = [one for one in guesses if text.right(position, [one])]
            token_ids.append(own[0] if self._rng.random() < right else self._rng.choice(guesses))
        lacking = len(chunk.token_ids) - len(token_ids)
        return chunk._replace(token_ids=token_ids, readout=Readout(readout.rows - lacking))

    def catch_up(self, step: Step) -> None:
        """Before a step moves blocks."""
        self._compute(self.behind.before_moves(step))

    def move(self, move: BlockMove, *, done: bool) -> None:
        """What becomes of its part of a block. done: not if the move has failed."""
        if move.kv_group >= len(self._pools):
            return
        pool, lost = self._pools[move.kv_group], self._lost[0]
        name = (move.kv_group, b"" if move.content is None else move.content.name)
        if move.kind is MoveKind.STORE:
            held = pool.kept(move)
            assert min(held) >= 0, "what is stored is there for a draft model, too"
            if done:
                self._stored[name] = [*held]
            return
        target = pool.host if move.kind is MoveKind.SWAP_OUT else pool.device
        if not done:
            target[move.target] = [lost] * len(target[move.target])
        elif move.kind is MoveKind.FETCH:
            target[move.target] = [*self._stored[name]]
        else:
            source = pool.host if move.kind is MoveKind.SWAP_IN else pool.device
            target[move.target] = [*source[move.source]]

    def fill(
        self, asked: Sequence[Chunk], filled: Sequence[Chunk], texts: Mapping[int, Known]
    ) -> None:
        """Compute what is due of a step's chunks. asked: before drafts were made for them."""
        self._texts |= {chunk.seq_id: texts[chunk.seq_id] for chunk in asked}
        made = {one.seq_id for one in asked if one.token_ids[-1] == TO_DRAFT}
        if made or not self.behind.leave(asked):
            self._compute([self.behind.take(chunk) for chunk in asked])
            for own, whole in zip(asked, filled, strict=True):
                if own.seq_id in made:
                    known = own.token_ids.index(TO_DRAFT)
                    for end in range(known + 1, len(whole.token_ids)):
                        before = whole.token_ids[: end - 1]
                        guessed = texts[own.seq_id].right(own.start, before) < len(before)
                        part = self.behind.further(own, whole.token_ids[:end])
                        self._compute([part], on_wrong=guessed and not self.behind.keeps_states)
        else:
            self.num_left += len(asked)
        ours = self.behind.keeps_states
        self._drafted = {
            one.seq_id for one in filled if one.drafts and (ours or one.seq_id in made)
        }

    def observe(self, filled: Sequence[Chunk], outcomes: Mapping[int, Outcome]) -> None:
        """What came of the chunks of the last ``fill``."""
        for chunk in filled:
            if chunk.seq_id in self._drafted:
                self.behind.verified(chunk, len(outcomes[chunk.seq_id].tokens))
        self._drafted = set()

    def _compute(self, parts: Sequence[Chunk], *, on_wrong: bool = False) -> None:
        """All writes come before all reads. on_wrong: they go on from drafts that are wrong."""
        tasks = [(part, self._texts[part.seq_id]) for part in parts if part.token_ids]
        for part, text in tasks:
            self._write(part, self._keys(part, text))
        for part, text in () if on_wrong else tasks:
            start, settled = part.start, len(part.token_ids) - len(part.drafts)
            end = start + text.right(start, part.token_ids)
            for pool, table in zip(self._pools, part.table.kv_groups, strict=False):
                if table.keeps_state and not settled:  # drafts alone, of which it keeps no trace
                    count, key = pool.device[table.block_ids[0]][:2]
                    wrong = None if [count, key] == [start, text.keys[start - 1]] else key
                else:
                    wrong = pool.wrong(table, text.keys, start, end)
                if wrong is not None:
                    assert wrong in self._lost, f"the draft model's part of {part} sees {wrong}"
                    self._write(part, [self._lost[0]] * len(part.token_ids))
                    break
        self.num_computed += len(tasks)

    def _keys(self, part: Chunk, text: Known) -> list[int]:
        """Of its tokens; of those that are not the text's, what is no key of it."""
        right = text.right(part.start, part.token_ids)
        wrong = [-10 - one for one in part.token_ids[right:]]
        return [*text.keys[part.start : part.start + right], *wrong]

    def _write(self, part: Chunk, keys: Sequence[int]) -> None:
        for pool, table in zip(self._pools, part.table.kv_groups, strict=False):
            if not table.keeps_state:
                pool.write(table, part.start, keys, 0)
            elif len(keys) > len(part.drafts):  # they have no room for drafts
                own = keys[: len(keys) - len(part.drafts)]
                pool.write(table._replace(confirmed=0), part.start, own, 0)
                pool.leave(part.start, own, part.left)

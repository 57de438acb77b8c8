"""A step's attention as lists of work items, made on the device."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from quire.kernels.gpu.programs import plan
from quire.kernels.gpu.tiles import Tile, Tiles
from quire.kernels.ops import AttentionBatch

NO_WINDOW = 2**30
_CHUNK = 128


class WorkList(NamedTuple):
    """Items of either the sequences with one new token or those with several."""

    items: Tensor  # [capacity, fields] int32
    tile: Tile
    tokens: int  # new tokens of a tile
    split: bool  # whether a tile's keys may be several segments


class _Geometry(NamedTuple):
    """The sizes that work lists depend on, beside the batch."""

    group: int  # query heads that share a key head
    kv_heads: int
    window: int
    by_chunks: bool
    tiles: Tiles


class GPUPlan:
    """A step's batch on the device, and its work lists, each made when a layer first asks."""

    def __init__(self, batch: AttentionBatch, num_processors: int) -> None:
        self.batch = batch
        self.starts = batch.starts
        self._num_processors = num_processors
        self._most = batch.most
        self._new = [last - first for first, last in pairwise(batch.query_starts)]
        self._known: dict[_Geometry, list[WorkList]] = {}
        self._owners: Tensor | None = None

    @property
    def owners(self) -> Tensor:
        """The sequence of each token, [T] int64."""
        if self._owners is None:
            rows = torch.arange(len(self.batch.positions), device=self.starts.device)
            self._owners = torch.searchsorted(self.starts, rows, right=True) - 1
        return self._owners

    def work(
        self, heads: int, kv_heads: int, window: int, by_chunks: bool, tiles: Tiles
    ) -> list[WorkList]:
        """The lists for layers of this kind."""
        geometry = _Geometry(heads // kv_heads, kv_heads, window, by_chunks, tiles)
        if geometry not in self._known:
            self._known[geometry] = [
                work
                for work in (self._single(geometry), self._several(geometry))
                if work is not None
            ]
        return self._known[geometry]

    def _single(self, geometry: _Geometry) -> WorkList | None:
        count = self._most.singles if self._most else sum(new == 1 for new in self._new)
        if not count:
            return None
        tile = geometry.tiles.single
        tile = tile._replace(rows=max(tile.rows, triton.next_power_of_2(geometry.group)))
        return self._list(geometry, tile, 1, count, self._most_segments(geometry, tile))

    def _several(self, geometry: _Geometry) -> WorkList | None:
        tile = geometry.tiles.several
        tile = tile._replace(rows=max(tile.rows, triton.next_power_of_2(geometry.group)))
        tokens = tile.rows // geometry.group
        count = whole = sum(-(-new // tokens) for new in self._new if new > 1)
        if self._most:
            # Each sequence's last tile may hold a single token.
            whole = self._most.tokens // tokens
            count = whole + self._most.several if self._most.several else 0
        if not count:
            return None
        most = self._most_segments(geometry, tile)
        # Tiles that fill the device by themselves are not split: parts of many rows are large.
        return self._list(geometry, tile, tokens, count, most if whole < most else 0)

    def _most_segments(self, geometry: _Geometry, tile: Tile) -> int:
        """The number of segments, for each key head, that fill the device."""
        return -(-self._num_processors * tile.programs // geometry.kv_heads)

    def _list(
        self, geometry: _Geometry, tile: Tile, tokens: int, num_tiles: int, most_segments: int
    ) -> WorkList:
        """``most_segments`` 0: every tile's keys are one segment."""
        capacity = num_tiles + most_segments
        num_seqs = self._most.seqs if self._most else len(self._new)
        items = self.starts.new_empty((capacity, plan.FIELDS.value), dtype=torch.int32)
        plan.list_items[(num_seqs + 1,)](
            items,
            self.starts,
            self.batch.context_lens,
            num_seqs,
            capacity,
            most_segments or 1,
            geometry.tiles.least_segment if most_segments else NO_WINDOW,
            geometry.window,
            TILE=tokens,
            BY_CHUNKS=geometry.by_chunks,
            SINGLE=tokens == 1,
            COLUMNS=tile.columns,
            SEQS=triton.next_power_of_2(num_seqs),
            CHUNK=_CHUNK,
        )
        return WorkList(items, tile, tokens, most_segments > 0)

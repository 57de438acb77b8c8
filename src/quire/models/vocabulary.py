"""The embedding and the head, of which each rank has the rows of some tokens."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.kernels.ranks import Ranks
from quire.models.linear import Linear
from quire.models.shard import Shard


class Vocabulary(NamedTuple):
    """From tokens' ids to their vectors, and from states to logits."""

    embed: Linear
    head: Linear
    size: int  # of all ranks together
    ranks: Ranks | None

    def rows(self, token_ids: Tensor, dtype: torch.dtype) -> Tensor:
        """token_ids [T] -> [T, width]; exact, since all ranks but one add zeros."""
        if self.ranks is None:
            return self.embed.rows(token_ids, dtype)
        held = Shard(self.ranks.rank, self.ranks.size).run(self.size)
        others = (token_ids < held.start) | (token_ids >= held.stop)
        x = self.embed.rows((token_ids - held.start).masked_fill(others, 0), dtype)
        x.masked_fill_(others[:, None], 0)
        self.ranks.add_up(x)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, width] -> [R, size] float32; of no tokens, but on the first rank."""
        logits = self.head.floats(hidden)
        if self.ranks is None:
            return logits
        size = self.ranks.size
        counts = [len(Shard(rank, size).run(self.size)) for rank in range(size)]
        padded = F.pad(logits, (0, max(counts) - logits.shape[1])).contiguous()
        gathered = self.ranks.gather(padded)
        if gathered is None:
            return logits[:, :0]
        return torch.cat([one[:, :count] for one, count in zip(gathered, counts, strict=True)], 1)

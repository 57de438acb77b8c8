"""Who lives, as steps tell it to those who carry them out."""

from __future__ import annotations

from quire.core.protocol.step import Opened, Step


class Roster:
    """The sequences that have been opened or forked and not been closed, and whose they are."""

    def __init__(self) -> None:
        self._known: dict[int, Opened] = {}

    def follow(self, step: Step) -> list[Opened]:
        """To be done first of all with every step: whose its chunks are.

        That holds for as long as the step is under way, whoever is closed meanwhile.
        """
        known = self._known
        for opened in step.opened:
            known[opened.seq_id] = opened
        for parent, child, branch in step.forked:
            known[child] = known[parent]._replace(seq_id=child, branch=branch)
        for seq_id in step.closed:
            del known[seq_id]
        return [known[chunk.seq_id] for chunk in step.chunks]

    def __len__(self) -> int:
        return len(self._known)

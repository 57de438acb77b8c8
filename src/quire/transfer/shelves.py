"""What has been fetched from a prefill engine, until it is used."""

from __future__ import annotations

from collections.abc import Sequence

from quire.memory import Content
from quire.store import RecordShelf


class FetchedBlocks(RecordShelf):
    """Records to read. What is computed here is not kept beside the pool."""

    def room(self) -> int:
        """None, for ever."""
        return 0

    def write(self, content: Content, parts: Sequence[bytes]) -> None:
        """Not called: there is no room."""

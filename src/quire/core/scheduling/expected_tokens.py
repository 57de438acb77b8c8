"""What requests that run are still expected to write, by what their clients' texts had before.

Nobody promises a length: ``max_tokens`` is a bound, and often far from what is written. A client's
own latest texts say more, and no other client can change them.
"""

from __future__ import annotations

from collections import OrderedDict

from quire.core.protocol.request import Request

_MOST_CLIENTS = 1000  # whose lengths are remembered
_LATEST = 0.3  # what the latest text counts for, of a client's expected length


class _Writing:
    """A group that was let in: how many tokens are expected of it, and how many there are."""

    __slots__ = ("client", "expected", "written")

    def __init__(self, client: str, expected: float) -> None:
        self.client = client
        self.expected = expected
        self.written = 0.0

    @property
    def left(self) -> float:
        return max(0.0, self.expected - self.written)


class ExpectedTokens:
    """How long the texts of clients are expected to be, and how much of those that run is left."""

    def __init__(self) -> None:
        self._lengths = OrderedDict[str, float]()  # of a sequence, by client; the latest last
        self._writing: dict[str, _Writing] = {}  # by request
        self._left: dict[str, float] = {}  # by client

    def left(self, client: str) -> float:
        """Tokens that a client's requests which run are still to write."""
        return self._left.get(client, 0.0)

    def of(self, request: Request) -> float:
        """Tokens of a request that has not begun; 0: nothing is known of its client."""
        length = min(self._lengths.get(request.client, 0.0), request.max_tokens)
        return length * request.params.width

    def begin(self, request: Request) -> None:
        expected = self.of(request)
        self._writing[request.request_id] = _Writing(request.client, expected)
        self._left[request.client] = self.left(request.client) + expected

    def write(self, request: Request, tokens: float) -> None:
        one = self._writing.get(request.request_id)
        if one is not None:
            before = one.left
            one.written += tokens
            if before:
                self._left[one.client] += one.left - before

    def end(self, request: Request, *, whole: bool) -> None:
        """It writes no more. whole: by itself, so that its length is remembered."""
        one = self._writing.pop(request.request_id, None)
        if one is None:
            return
        self._left[one.client] -= one.left
        if whole:
            self._learn(one.client, one.written / request.params.width)
        if not any(each.client == one.client for each in self._writing.values()):
            del self._left[one.client]  # what rounding has left too

    def _learn(self, client: str, length: float) -> None:
        if client in self._lengths:
            length = _LATEST * length + (1 - _LATEST) * self._lengths.pop(client)
        self._lengths[client] = length
        if len(self._lengths) > _MOST_CLIENTS:
            self._lengths.popitem(last=False)

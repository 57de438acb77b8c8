"""What every text must be, by plain recursion: no memory, no scheduler, nobody beside it.

A token's *key* depends on all tokens before it, on the salt, the adapter and the session's cuts;
the next token is a function of the last key. So a slot that holds the right key holds what it
should, and one look at it says so.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import takewhile

from quire.capabilities.beams import BeamSearch
from quire.core.protocol import Adapter, Request, SoftCut, TokenLogprobs, column_biases

VOCAB = 50
EOS = 0
_PRIME = 2**61 - 1


def first_key(salt: str, adapter: Adapter | None) -> int:
    """What the first token's key depends on."""
    return zlib.crc32(b"" if adapter is None else adapter.name.encode(), zlib.crc32(salt.encode()))


def key_after(previous: int, token: int) -> int:
    return (previous * 0x2545F4914F6CDD1D + token * 0x9E3779B97F4A7C15 + 1) % _PRIME


class Text:
    """Tokens and their keys."""

    def __init__(self, request: Request, cuts: Sequence[SoftCut] = ()) -> None:
        self.request = request
        self.cuts = cuts
        self.tokens: list[int] = []
        self.keys: list[int] = []
        self._last = first_key(request.cache_salt, request.adapter)

    def add(self, token: int) -> None:
        key = key_after(self._last, token)
        if self.cuts:
            here = len(self.keys)
            behind = [cut for cut in self.cuts if cut.position <= here]
            if behind:
                key = (key + zlib.crc32(repr(column_biases(behind, here)).encode())) % _PRIME
        self.tokens.append(token)
        self.keys.append(key)
        self._last = key

    def right(self, start: int, token_ids: Sequence[int]) -> int:
        """How many of these, the first ones, are its tokens from ``start`` on."""
        pairs = zip(self.tokens[start:], token_ids, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def grown(self, start: int, token_ids: Sequence[int]) -> None:
        """A step computes these tokens from ``start`` on: they must be its own."""
        assert list(token_ids) == self.tokens[start : start + len(token_ids)], "other tokens"


class Answer(Text):
    """A prompt, or the history of a session, and what a request must be answered.

    length: of the output, as soon as its end is known.
    """

    def __init__(
        self,
        request: Request,
        branch: int,
        history: Sequence[int] | None = None,
        cuts: Sequence[SoftCut] = (),
        stop: int | None = None,
    ) -> None:
        super().__init__(request, cuts)
        self._branch, self._stop = branch, stop
        for token in request.prompt_token_ids if history is None else history:
            self.add(token)
        self.start = len(self.tokens)
        self.length: int | None = 0 if request.max_tokens == 0 else None

    def upto(self, count: int) -> list[int]:
        """At least so many tokens, as if nothing ended the text."""
        tokens = self.tokens
        while len(tokens) < count:
            token = next_token(self._last, self.request.seed, self._branch)
            self.add(token)
            if self.length is None:
                produced, params = len(tokens) - self.start, self.request.params
                stops = token in (EOS, self._stop) and produced >= params.min_tokens
                if stops or produced >= self.request.max_tokens:
                    self.length = produced
        return tokens

    def right(self, start: int, token_ids: Sequence[int]) -> int:
        self.upto(start + len(token_ids))
        return super().right(start, token_ids)

    def grown(self, start: int, token_ids: Sequence[int]) -> None:
        self.upto(start + len(token_ids))
        super().grown(start, token_ids)

    def output(self) -> list[int]:
        while self.length is None:
            self.upto(len(self.tokens) + 1)
        return self.tokens[self.start : self.start + self.length]


class Beam(Text):
    """A beam, which goes on with whichever of its candidates is chosen."""

    def __init__(self, request: Request, tokens: Sequence[int]) -> None:
        super().__init__(request)
        for token in tokens:
            self.add(token)

    def grown(self, start: int, token_ids: Sequence[int]) -> None:
        for token in token_ids[len(self.tokens) - start :]:
            self.add(token)
        super().grown(start, token_ids)

    def child(self) -> Beam:
        child = Beam(self.request, ())
        child.tokens, child.keys, child._last = [*self.tokens], [*self.keys], self._last
        return child


def next_token(key: int, seed: int, branch: int) -> int:
    return ((key ^ (seed * 7 + branch) * 0x9E3779B97F4A7C15) % _PRIME >> 11) % VOCAB


def candidates(key: int, count: int) -> list[tuple[int, float]]:
    """The likeliest tokens after that key."""
    step = 0.1 + (key >> 20) % 1000 / 1000
    return [((key + 7 * i) % VOCAB, -0.5 - step * i - key % 97 / 1e4) for i in range(count)]


def score(key: int, token: int) -> TokenLogprobs:
    """Of a token after that key."""
    return TokenLogprobs(-((key ^ token) % 1000) / 100, 1, ())


def vector(key: int) -> list[float]:
    return [float(key % 1009), float(key % 1013)]


def beams_of(request: Request) -> list[list[int]]:
    """What a beam search must find."""
    search, texts = BeamSearch(request), [Beam(request, request.prompt_token_ids)]
    start = len(request.prompt_token_ids)
    while True:
        found = [candidates(text.keys[-1], search.num_candidates) for text in texts]
        length = len(texts[0].tokens) - start + 1
        choices = search.advance(length, found, lambda i, now=texts: now[i].tokens[start:])  # type: ignore[misc]
        if not choices:
            best = search.finished[: request.params.num_outputs]
            return [list(one.token_ids) for one in best]
        children = []
        for choice in choices:
            children.append(texts[choice.beam].child())
            children[-1].add(choice.token_id)
        texts = children

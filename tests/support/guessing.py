"""What drafters that know texts ought to say, by brute force over all that they know."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

from quire.capabilities.speculation import Drafter, Proposal
from quire.core.protocol import Request
from quire.core.scheduling.sequence import Sequence
from quire.text.params import SamplingParams


class Place(NamedTuple):
    """A token that has others before it."""

    text: Seq[int]  # in which it stands
    index: int

    def agreement(self, tail: Seq[int], most: int) -> int:
        length = 0
        while (
            length < min(most, len(tail), self.index)
            and self.text[self.index - 1 - length] == tail[-1 - length]
        ):
            length += 1
        return length


@dataclass(frozen=True)
class Reference:
    """The rules in plain Python: places are given latest first."""

    orders: Seq[int]
    voters: int = 16
    longest: int = 64
    walked: int = 64
    factor: float = 2.0
    least: float = 0.1

    def guess(self, places: Seq[Place], tail: Seq[int], most: int) -> Proposal | None:
        for order in sorted(self.orders, reverse=True):
            near = [p for p in places if p.agreement(tail, order) == order][: self.walked]
            lengths = [place.agreement(tail, self.longest) for place in near]
            if lengths:
                length = max(lengths)
                same = [p for p, each in zip(near, lengths, strict=True) if each == length]
                return self._vote(same[: self.voters], length, tail, most)
        return None

    def _vote(self, places: list[Place], length: int, tail: Seq[int], most: int) -> Proposal | None:
        weights = {i: 1 + 1 / (1 + i) for i in range(len(places))}
        drafts: list[int] = []
        chances: list[float] = []
        while len(drafts) < min(most, max(1, int(min(self.factor * length, 16)))) and weights:
            # What is beyond a text's end are the drafts themselves, where it is the own one.
            said = {}
            for i in weights:
                at = places[i].index + len(drafts)
                text = places[i].text
                said[i] = text[at] if at < len(text) else drafts[at - len(text)]
            sums: dict[int, float] = {}
            for i, weight in weights.items():
                sums[said[i]] = sums.get(said[i], 0) + weight
            token = max(sums, key=lambda one: sums[one])  # of equals, what was said latest
            sure = length + len(drafts)
            doubt = 8 / (sure * math.sqrt(sure))
            chance = sums[token] / (sum(weights.values()) + doubt)
            if math.prod([*chances, chance]) < self.least:
                break
            agreeing = {i: weight for i, weight in weights.items() if said[i] == token}
            drafts.append(token)
            chances.append(chance)
            weights = {
                i: weight
                for i, weight in agreeing.items()
                if places[i].text is tail or places[i].index + len(drafts) < len(places[i].text)
            }
        return Proposal(drafts, chances, length) if drafts else None

    def own(self, text: Seq[int], most: int) -> Proposal | None:
        return self.guess([Place(text, i) for i in reversed(range(1, len(text)))], text, most)


def same(told: Proposal | None, right: Proposal | None) -> bool:
    if told is None or right is None:
        return told is right
    close = all(math.isclose(a, b) for a, b in zip(told.chances, right.chances, strict=True))
    return list(told.tokens) == list(right.tokens) and told.evidence == right.evidence and close


def request_of(prompt: Seq[int], name: str = "a", **facts: object) -> Request:
    return Request(name, tuple(prompt), SamplingParams(), 10, 0, **facts)  # type: ignore[arg-type]


class Served:
    """One request after the other, or beside each other, each with one sequence."""

    def __init__(self, drafter: Drafter, most: int = 16) -> None:
        self.drafter, self.most = drafter, most
        self.num = 0

    def begin(self, prompt: Seq[int], **facts: object) -> tuple[Request, Sequence]:
        self.num += 1
        return request_of(prompt, f"{self.num}", **facts), Sequence(self.num, 0, prompt)

    def ask(self, one: tuple[Request, Sequence]) -> Proposal | None:
        return self.drafter.propose(*one, self.most)

    def serve(self, prompt: Seq[int], output: Seq[int], **facts: object) -> None:
        """Whole, with a step for each token."""
        one = self.begin(prompt, **facts)
        for token in output:
            self.ask(one)
            one[1].token_ids.append(token)
        self.drafter.close(one[1].seq_id)

    def drafts_after(self, prompt: Seq[int], **facts: object) -> list[int]:
        """What a new request is told, which then ends with nothing."""
        one = self.begin(prompt, **facts)
        proposal = self.ask(one)
        self.drafter.close(one[1].seq_id)
        return [] if proposal is None else list(proposal.tokens)

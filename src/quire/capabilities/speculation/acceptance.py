"""How often drafts have turned out right: of a sequence, and of all before it."""

from __future__ import annotations

from quire.capabilities.speculation.proposal import Proposal

_KIND = [0, 1, 2, 3, 3, *[4] * 4, *[5] * 8, 6]
"""Kinds of evidence: none, or a match of 1, 2, 3 to 4, 5 to 8, 9 to 16 or more tokens."""

_KINDS = _KIND[-1] + 1
_PRIOR = 0.9  # share of the drafts expected to be right that are: until more is known
_MOST = len(_KIND) - 1
_PRIOR_WEIGHT = 1.5  # drafts that what is known of all others counts as, for a sequence
_RECENT, _RECENT_OF_ALL = 0.95, 0.995  # what counts less with each draft that has been tried
_RECENT_BY_MODEL = 0.98  # which has no match that ends
_SURE = 0.995


class Shares:
    """Drafts that were right, and what was expected of them, by drafter and kind of evidence."""

    __slots__ = ("expected", "right")

    def __init__(self, size: int) -> None:
        self.right, self.expected = [0.0] * size, [0.0] * size

    def note(self, place: int, chance: float, right: bool, keep: float) -> None:
        self.right[place] = keep * self.right[place] + right
        self.expected[place] = keep * self.expected[place] + chance


class Acceptance:
    """Chances that drafts are right, corrected by what became of those before."""

    def __init__(self, num_drafters: int) -> None:
        self._size = num_drafters * _KINDS
        self._all = Shares(self._size)
        self._all.right, self._all.expected = [20 * _PRIOR] * self._size, [20.0] * self._size
        self._of: dict[int, Shares] = {}  # by sequence

    def chances(self, seq_id: int, drafter: int, proposal: Proposal) -> list[float]:
        """Chances of each draft that it and all before it are right."""
        everyone, own = self._all, self._of.get(seq_id)
        first, evidence = drafter * _KINDS, proposal.evidence
        found, together, kind, share = [], 1.0, -1, 0.0
        for number, chance in enumerate(proposal.chances):
            if kind != _kind(evidence, number):
                kind = _kind(evidence, number)
                share = everyone.right[first + kind] / everyone.expected[first + kind]
                if own is not None:
                    right, expected = own.right[first + kind], own.expected[first + kind]
                    share = (right + _PRIOR_WEIGHT * share) / (expected + _PRIOR_WEIGHT)
            together *= min(_SURE, chance * share)
            found.append(together)
        return found

    def observe(
        self, seq_id: int, drafter: int, proposal: Proposal, tried: int, right: int
    ) -> None:
        """Learn that ``right`` of the first ``tried`` drafts were accepted, and no later one."""
        own = self._of.get(seq_id)
        if own is None:
            own = self._of[seq_id] = Shares(self._size)
        recent = _RECENT if proposal.evidence else _RECENT_BY_MODEL
        first, evidence, chances = drafter * _KINDS, proposal.evidence, proposal.chances
        for number in range(min(tried, right + 1)):
            place, is_right = first + _kind(evidence, number), number < right
            own.note(place, chances[number], is_right, recent)
            self._all.note(place, chances[number], is_right, _RECENT_OF_ALL)

    def close(self, seq_id: int) -> None:
        """Forget a sequence."""
        self._of.pop(seq_id, None)


def _kind(evidence: int, number: int) -> int:
    """The class of a draft by its evidence: each draft before it lengthens the match by one."""
    if not evidence:
        return 0
    return _KIND[min(evidence + number, _MOST)]

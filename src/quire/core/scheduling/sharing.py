"""How a step is shared: its tokens, and its time beside the model.

Its tokens are shared between a long prefill and those who decode behind it in the queue: a group
that comes first by priority may come while others decode, and take many steps to prefill.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq

from quire.core.protocol.decision import Decision, Verdict
from quire.core.protocol.step import Step
from quire.core.scheduling.sequence import Sequence, SequenceGroup, by_rank

BESIDE_SECONDS, BESIDE_SHARE = 0.020, 0.5
"""Of a step, for what requests ask for beside tokens: so long, or, if that is more, this share of
what all else takes."""
_FADING = 0.9  # what the dearest row is taken to cost, a step after it was seen
_CHEAP = 1e-6  # seconds


class DecodeShare:
    """Keeps half of a step's tokens for those who decode behind a prefill.

    So with R rows that decode and B tokens that those before have left, each of them decodes in
    every step if R is at most B / 2, else in turn, at least once in 2 R / B + 1 steps; and the
    prefill has half of the tokens, or more. What half a token is, or half of what a group of beams
    needs at once, is saved up.
    """

    def __init__(self) -> None:
        self._saved = 0.0  # tokens
        self._last: tuple[float, int] | None = None  # the rank of the group that had the last one
        self._kept: dict[str, int] = {}  # in this step, by request
        self._found = False  # a prefill, in this step

    def begin(self) -> None:
        """Another step."""
        self._kept.clear()
        self._found = False

    def budget(self, running: Seq[SequenceGroup], position: int, budget: int) -> int:
        """Tokens that the group at this position may compute, of what is left."""
        group = running[position]
        own = self._kept.pop(group.request.request_id, 0)
        if own:
            return own
        if not self._found and not rows_to_decode(group):
            self._found = True
            self._keep(running[position + 1 :], budget)
        return budget - sum(self._kept.values()) if self._kept else budget

    def _keep(self, behind: Seq[SequenceGroup], budget: int) -> None:
        decoding = [(group, rows) for group in behind if (rows := rows_to_decode(group))]
        if not decoding:
            return
        last, saved = self._last, min(float(budget), self._saved + budget / 2)
        if last is not None:  # after him comes the next one
            decoding.sort(key=lambda one: (by_rank(one[0]) <= last, by_rank(one[0])))
        for group, rows in decoding:
            if rows > saved:
                break
            self._kept[group.request.request_id] = rows
            self._last = by_rank(group)
            saved -= rows
        self._saved = saved


def rows_to_decode(group: SequenceGroup) -> int:
    """Tokens from which each of its branches has its next one; 0: it has to compute more."""
    rows = 0
    for branch in group.branches:
        pending = len(branch.token_ids) - branch.num_computed
        if pending > 1 or branch.fork_from is not None:
            return 0
        rows += pending
    return rows


class BesideShare:
    """Bounds the time that a step takes beside the model: log-probabilities, edits of logits and
    stop strings.

    It goes by what a row of each request took when it was last computed. Where all of them would
    take too long together, they take turns: as many compute as there is time for, one at least, and
    the others sit the step out. Of a request that takes too long alone, some branches compute.

    in_use: whether any of the latest steps has taken such time. While none has, it is not called.
    """

    def __init__(self) -> None:
        self._each: dict[str, float] = {}  # seconds of a row, by request
        self._budget = self._left = BESIDE_SECONDS
        self._dearest = 0.0  # of a row of late, as a newcomer's is taken to be
        self._last: tuple[float, int] | None = None  # the rank of the group that had the last turn
        self._sitting: dict[str, None] = {}
        self._invited = False  # a newcomer, in this step
        self.in_use = False

    def observe(
        self,
        step: Step,
        delays: Mapping[int, float],
        seconds: float,
        find: Callable[[int], tuple[SequenceGroup, Sequence] | None],
    ) -> None:
        """A step has taken ``seconds``, and ``delays`` of them beside the model."""
        took: dict[str, list[float]] = {}
        for chunk in step.chunks:
            known = find(chunk.seq_id)
            if known is not None:
                rows = took.setdefault(known[0].request.request_id, [])
                if delay := delays.get(chunk.seq_id, 0.0):
                    rows.append(delay)
        for request_id, rows in took.items():
            self._each.pop(request_id, None)
            if rows:
                self._each[request_id] = sum(rows) / len(rows)
        beside = sum(delays.values())
        self._budget = max(BESIDE_SECONDS, BESIDE_SHARE * (seconds - beside))
        self._dearest = max(
            [_FADING * self._dearest, *(self._each[one] for one in took if took[one])]
        )
        self.in_use = bool(self._each) or self._dearest > _CHEAP

    def has_room(self, running: Seq[SequenceGroup]) -> bool:
        """Another step begins: whether there is time for all of these."""
        known, self._invited = self._each, False
        self._each = {name: known[name] for name in map(_name, running) if name in known}
        self.in_use = bool(self._each) or self._dearest > _CHEAP
        self._left = self._budget - sum(map(self._cost, running))
        return self._left >= 0.0 or len(self._each) < 2

    def begin(self, running: Seq[SequenceGroup], step: Step) -> Mapping[str, None]:
        """Who sits the next step out; the step says so of those who did not before."""
        before, self._sitting = self._sitting, {}
        if self.has_room(running):
            return self._sitting
        costly = [one for one in running if _name(one) in self._each]
        last, left, turns = self._last, self._budget, 0
        if last is not None:
            costly.sort(key=lambda one: (by_rank(one) <= last, by_rank(one)))
        for group in costly:
            cost = min(self._cost(group), self._budget)
            if turns and cost > left:
                break
            left, turns, self._last = left - cost, turns + 1, by_rank(group)
        self._sitting = dict.fromkeys(map(_name, costly[turns:]))
        for name in self._sitting:
            if name not in before:
                why = "what others ask for beside the model takes all of its time in a step"
                step.decisions.append(Decision(Verdict.SIT_OUT, name, why))
        return self._sitting

    def tokens(self, group: SequenceGroup, budget: int) -> int:
        """How many of a budget of tokens a group may compute."""
        if len(group.branches) < 2 or group.beams is not None or self._cost(group) <= self._budget:
            return budget
        return min(budget, max(1, int(self._budget / self._each[_name(group)])))

    def invites(self, group: SequenceGroup) -> bool:
        """Whether a step has time for a newcomer that asks for such; it has for one."""
        cost = self._dearest * group.width
        if self._invited and cost > self._left:
            return False
        self._invited, self._left = True, self._left - cost
        return True

    def _cost(self, group: SequenceGroup) -> float:
        return self._each.get(_name(group), 0.0) * len(group.branches)


def _name(group: SequenceGroup) -> str:
    return group.request.request_id

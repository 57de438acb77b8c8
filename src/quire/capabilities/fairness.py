"""Clients share: the one that has been served least is let in next.

What deficit round robin gives (Shreedhar and Varghese, 1996), by virtual time in place of rounds,
as in start-time fair queueing (Goyal, Vin and Cheng, 1996): each client has an account of the
tokens that it was served, and the smallest one is next. There is no quantum to choose, and the
length of an output need not be known: a prompt is charged when it is let in, without what is found
in the prefix cache but with what is to be kept there before others, and each further token when it
is computed, as in the virtual token counter (Sheng et al., "Fairness in Serving Large Language
Models", OSDI 2024). What is computed again is not charged again, and what is left of the prompt of
a request that ends early is given back.

Of two clients that always have requests waiting, of equal priorities, one is served more than the
other by at most one prompt and what is generated for all that it runs at once, for it was not ahead
when it was let in last, and by ``_SOON`` tokens for each sequence that the other then ran. Who runs
is never made to give way for this: a newcomer waits for the next free place, and then for nobody
who has been served more. Once it is let in a group keeps its place, behind all that were let in
before it; so the scheduler ends every request as it does without clients.

A client that had nothing waiting begins at the virtual time: idleness earns nothing. Virtual time
is what the one that is let in had been served, but goes on at least as it does for all who wait
together (WF2Q+; Bennett and Zhang, 1997). Without that, an endless row of new clients with urgent
requests could stay before somebody for ever.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Collection, Iterable
from heapq import heapify, heappop, heapreplace

from quire.core.protocol.decision import SchedulingPolicy
from quire.core.protocol.request import Adapter, Request
from quire.core.scheduling.request_queue import Accounts
from quire.core.scheduling.sequence import SequenceGroup, by_rank, discard

PRIORITY_TOKENS = 10_000
"""Tokens of service that one level of priority is worth, so that it helps a client whose requests
are few and urgent, but not one that sends nothing else. Within a client it is as in the priority
policy."""

_SOON = 64
"""Tokens that a sequence which runs is soon to write. They are not charged, but count when the next
client is chosen, or as many long texts would be let in as fit before any of them is charged for. It
is about what a short request is charged at once, so that one does not outweigh another that runs.
All that is expected of a text would be too much: docs/howto/share.md has what was measured."""

_MOST_DEBTS = 1000  # accounts that are kept though nothing of theirs waits


def accounts_of(policy: SchedulingPolicy) -> Callable[[], Accounts] | None:
    """What makes the accounts of a policy, if it has any."""
    return FairQueue if policy is SchedulingPolicy.FAIR else None


class _Account:
    """What a client has been served, and what it waits for."""

    __slots__ = ("begin", "client", "key", "served", "waiting")

    def __init__(self, client: str, begin: float) -> None:
        self.client = client
        self.begin = begin  # what it counts from; nothing before that is given back
        self.served = begin
        self.waiting: list[SequenceGroup] = []  # in order of rank
        self.key = (begin, 0.0, 0.0)  # as ``FairQueue`` has it, when it was last looked at


def _key(account: _Account) -> tuple[float, float, float]:
    return account.key


class FairQueue:
    """Newcomers by the accounts of their clients; see ``Accounts``.

    An account is forgotten when nothing of its client waits and it is behind the virtual time, at
    which the client would begin anyway; and all of them are when nobody waits.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._queue: list[_Account] = []  # that wait, by key; what they were served may be more now
        self._running: dict[str, int] = {}  # sequences that were let in, by client
        self._time = 0.0
        self._num_let_in = 0
        self._num_forgotten = 0  # of them, let in before the accounts were opened
        self._many = 2 * _MOST_DEBTS  # accounts, upon which debts are looked through

    @property
    def num_clients(self) -> int:
        return len(self._queue)

    def add(self, group: SequenceGroup) -> None:
        account = self._account(group.request.client)
        if account.waiting:
            discard(self._queue, account, _key)
        else:
            account.begin = self._now()
            account.served = max(account.served, account.begin)
        insort(account.waiting, group, key=by_rank)
        self._queue_up(account)

    def first(self) -> SequenceGroup | None:
        """The next group of the client that has been served least."""
        while self._queue:
            account = self._queue[0]
            if account.key == self._due(account):
                return account.waiting[0]
            del self._queue[0]  # it has been served since
            self._queue_up(account)
        return None

    def order(self) -> list[SequenceGroup]:
        nexts = [(self._due(account), 0, account, account.served) for account in self._queue]
        order = list[SequenceGroup]()
        heapify(nexts)
        while nexts:
            _, number, account, served = nexts[0]
            group = account.waiting[number]
            order.append(group)
            served += _tokens_left(group) + group.request.keeping_tokens
            served += _SOON * group.request.params.width
            if number + 1 < len(account.waiting):
                due = self._due(account, account.waiting[number + 1])
                due = (due[0] - account.served + served, *due[1:])
                heapreplace(nexts, (due, number + 1, account, served))
            else:
                heappop(nexts)
        return order

    def first_beside(self, adapters: Collection[Adapter]) -> SequenceGroup | None:
        """By the accounts as they are now, of each client's first that asks for none of these."""
        found = (
            (self._due(account, group), group)
            for account in self._queue
            for group in account.waiting
            if group.request.adapter not in adapters
        )
        return min(found, key=lambda one: one[0], default=(None, None))[1]

    def let_in(self, group: SequenceGroup) -> None:
        """Charge the prompt, and let the group stand behind all that were let in before."""
        account = self._accounts[group.request.client]
        self._time = self._now()
        tokens = _tokens_left(group)
        self._time += max(tokens, 1) / len(self._queue)
        account.served += tokens + (group.request.keeping_tokens if group.request.keep else 0)
        self._run(group.request, group.request.params.width)
        self._take_out(group)
        group.rank = (-math.inf, self._num_let_in)
        self._num_let_in += 1
        self._settle()

    def remove(self, group: SequenceGroup) -> None:
        self._take_out(group)
        self._settle()

    def refund(self, group: SequenceGroup) -> None:
        self._run(group.request, -group.request.params.width)
        account = self._accounts.get(group.request.client)
        if account is None:
            return
        if not group.expanded and group.rank[1] >= self._num_forgotten:
            account.served = max(account.served - _tokens_left(group), account.begin)
        self._look_again(account)

    def ended(self, request: Request) -> None:
        self._run(request, -request.params.width)
        account = self._accounts.get(request.client)
        if account is not None:
            self._look_again(account)

    def serve(self, tokens: Iterable[tuple[Request, float]]) -> None:
        if self._queue:  # else there is nobody to compare with
            for request, number in tokens:
                self._account(request.client).served += number

    def _due(
        self, account: _Account, group: SequenceGroup | None = None
    ) -> tuple[float, float, float]:
        """The order of those who wait, by their first groups; among equals, by arrival."""
        group = group or account.waiting[0]
        tokens = account.served + _SOON * self._running.get(account.client, 0)
        return (tokens + PRIORITY_TOKENS * group.request.priority, *group.rank)

    def _run(self, request: Request, sequences: int) -> None:
        """So many more of a client's sequences run."""
        running = self._running.get(request.client, 0) + sequences
        if running:
            self._running[request.client] = running
        else:
            del self._running[request.client]

    def _look_again(self, account: _Account) -> None:
        """It may come sooner than it was to."""
        if account.waiting:
            discard(self._queue, account, _key)
            self._queue_up(account)

    def _now(self) -> float:
        """The virtual time: what the next one to be let in has been served, if that is more."""
        if self.first() is None:
            return self._time
        account = self._queue[0]
        return max(self._time, min(account.served, account.key[0]))

    def _take_out(self, group: SequenceGroup) -> None:
        account = self._accounts[group.request.client]
        discard(self._queue, account, _key)
        discard(account.waiting, group, by_rank)
        if account.waiting:
            self._queue_up(account)

    def _settle(self) -> None:
        if not self._queue:
            self._accounts.clear()
            self._time = 0.0
            self._num_forgotten = self._num_let_in

    def _queue_up(self, account: _Account) -> None:
        account.key = self._due(account)
        insort(self._queue, account, key=_key)

    def _account(self, client: str) -> _Account:
        account = self._accounts.get(client)
        if account is None:
            if len(self._accounts) >= self._many:
                self._forget()
            account = self._accounts[client] = _Account(client, self._time)
        return account

    def _forget(self) -> None:
        """Keep who waits, and the largest debts."""
        debts = [a for a in self._accounts.values() if not a.waiting and a.served > self._time]
        debts.sort(key=lambda account: -account.served)
        kept = [*self._queue, *debts[:_MOST_DEBTS]]
        self._accounts = {account.client: account for account in kept}
        self._many = 2 * max(len(kept), _MOST_DEBTS)


def _tokens_left(group: SequenceGroup) -> int:
    """Of the prompt, that are to be computed; the history of a session is not part of it."""
    return min(group.branches[0].num_pending, len(group.request.prompt_token_ids))

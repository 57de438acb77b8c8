"""How ranks come together: started or waited for, compared, and joined into one group."""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path

import torch
from msgspec.msgpack import decode, encode

from quire.engine.assembly.ranks.facts import difference, facts_of, place
from quire.engine.assembly.ranks.messages import Go, Meet, OfStep, RankFacts
from quire.engine.assembly.ranks.processes import RankProcess, Start
from quire.engine.assembly.ranks.team import Team
from quire.engine.config import EngineConfig
from quire.kernels.compiled import KERNELS, need
from quire.kernels.gloo_ranks import GlooRanks, meeting_point
from quire.kernels.ranks import RankGroup
from quire.kernels.threads import shares_of_cores, usable_cores
from quire.kernels.transport import Connection


def threads_of(config: EngineConfig, ranks_here: int) -> int:
    """Of each rank. By default as many as torch would take (OMP_NUM_THREADS), but no more than can
    run at once."""
    return config.threads or max(1, min(torch.get_num_threads(), usable_cores()) // ranks_here)


def start_here(team: Team, config: EngineConfig) -> None:
    """Start the ranks of this machine, of which this process is the first."""
    count = config.tensor_parallel_size // config.nnodes
    threads, shares = threads_of(config, count), shares_of_cores(count)
    torch.set_num_threads(threads)
    if count == 1:
        return
    if shares is not None:
        team.at_end(_bound_to(shares[0]))
    for rank in range(1, count):
        cpus = None if shares is None else shares[rank]
        ours, theirs = socket.socketpair()
        start = Start.of(rank, config, threads, cpus, with_rank_0=True)
        team.add(rank, Connection(ours), place(), RankProcess(start, theirs))


def _bound_to(cpus: Collection[int]) -> Callable[[], None]:
    """Bind this thread and those that it will start; returns what undoes that."""
    thread, before = threading.get_native_id(), os.sched_getaffinity(0)
    os.sched_setaffinity(thread, cpus)

    def undo() -> None:
        if Path(f"/proc/self/task/{thread}").exists():
            os.sched_setaffinity(thread, before)

    return undo


def meet(
    team: Team, config: EngineConfig, directory: Path, instruction_set: str
) -> tuple[RankGroup, int]:
    """The group of all ranks that have come, and how many of them are on this machine.

    Raises:
        ConfigError: they do not agree.
    """
    team.arrive()
    places = [place(), *(member.place for member in team.members)]
    team.say(Meet(str(directory)))
    facts = decode(encode(facts_of(config, directory, instruction_set)))
    for member, answer in zip(team.members, team.answers(RankFacts), strict=True):
        why = difference(facts, answer.facts, member.rank)
        if why is not None:
            team.refuse(member, why)
    together = Counter(places)

    ranks_here = {member.rank: together[member.place] for member in team.members}
    if team.host is not None and (len(together) > 1 or config.nnodes > 1):
        group = _over_network(team, team.host, ranks_here)
    else:
        group = _in_memory(team, config, instruction_set, ranks_here)
    team.begin(group)
    return group, together[places[0]]


def need_shared_memory(config: EngineConfig) -> None:
    """ConfigError: ranks of one machine cannot add up here."""
    what = f"tensor_parallel_size {config.tensor_parallel_size} on one machine needs the kernels"
    need(KERNELS, what, "leave it out")


def _in_memory(
    team: Team, config: EngineConfig, instruction_set: str, ranks_here: Mapping[int, int]
) -> RankGroup:
    need_shared_memory(config)
    from quire.kernels.shared_ranks import SharedMemoryRanks

    group = SharedMemoryRanks.create(team.size, team.silence, instruction_set)
    for member in team.members:
        member.send(Go(ranks_here[member.rank], memory=group.name))
    return group


def _over_network(team: Team, host: str, ranks_here: Mapping[int, int]) -> RankGroup:
    meet = meeting_point(host, team.size, team.silence)
    for member in team.members:
        member.send(Go(ranks_here[member.rank], address=(host, meet.port)))
    inboxes = {member.rank: member.inbox for member in team.members}
    own_address = team.members[0].connection.own_address
    send = partial(team.say, OfStep())
    return GlooRanks(0, team.size, send, inboxes, meet, own_address, team.silence)

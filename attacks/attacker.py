"""An attack in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection

from attacks.catalogue import named
from attacks.target import Address, Limits, Target

_POLITENESS = 10  # the server's processes are to have the cores when they want them


class Attacker:
    """The process, while it runs and after."""

    def __init__(self, process: multiprocessing.process.BaseProcess, told: Connection) -> None:
        self._process = process
        self._told = told

    @property
    def busy(self) -> bool:
        return self._process.is_alive()

    def answers(self) -> Counter[str]:
        """The answers it has had; none if it had to be ended."""
        return self._told.recv() if self._told.poll() else Counter()


@contextmanager
def attacking(name: str, address: Address, limits: Limits, seconds: float) -> Iterator[Attacker]:
    """The attack of that name; ended with the block if it has not ended by itself."""
    context = multiprocessing.get_context("spawn")  # a fork would take the caller's threads along
    told, tell = context.Pipe(duplex=False)
    process = context.Process(target=_attack, args=(name, address, limits, seconds, tell))
    process.start()
    try:
        yield Attacker(process, told)
    finally:
        process.kill()
        process.join()


def _attack(name: str, address: Address, limits: Limits, seconds: float, tell: Connection) -> None:
    os.nice(_POLITENESS)
    with suppress(ValueError, OSError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    target = Target(address, limits, seconds)
    named(name).run(target)
    tell.send(target.answers)

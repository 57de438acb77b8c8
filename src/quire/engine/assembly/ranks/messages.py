"""What rank 0 and another rank say to each other."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.msgpack import Decoder

from quire.capabilities.adapters.reading import AdapterRead, ReadAdapter
from quire.core.kv_groups import KVGroup
from quire.core.memory import BlockHash


class RankHello(Struct, tag=True, frozen=True):
    """Which rank calls rank 0."""

    rank: int
    size: int
    place: str  # see ``facts.place``


class Beat(Struct, tag=True, frozen=True):
    """The process gets on."""


class RankFailed(Struct, tag=True, frozen=True):
    """An error that ends the rank."""

    kind: str
    text: str


class RankFacts(Struct, tag=True, frozen=True):
    """The facts that ranks must agree on, by name."""

    facts: dict[str, Any]


class FreeMemory(Struct, tag=True, frozen=True):
    """Bytes that a rank has for a pool."""

    free: int


class Ready(Struct, tag=True, frozen=True):
    """The rank's part of the model is in memory; later, its pool is."""


class Fetched(Struct, tag=True, frozen=True):
    """A ``Fetch`` is over."""

    number: int


class OfStep(Struct, tag=True, frozen=True):
    """The payload is an order of ``quire.execution.ranks``, or its answer; not on one machine."""


class Meet(Struct, tag=True, frozen=True):
    """All ranks are there. directory: of the model, on rank 0's machine."""

    directory: str


class RankRefused(Struct, tag=True, frozen=True):
    """Rank 0 has no use for the rank."""

    why: str


class Go(Struct, tag=True, frozen=True):
    """All agree, and add up in memory of that name, or over the network: where they meet."""

    ranks_here: int  # on the rank's machine
    memory: str = ""
    address: tuple[str, int] = ("", 0)


class CountMemory(Struct, tag=True, frozen=True):
    """What loading took is known."""


class MakePool(Struct, tag=True, frozen=True):
    """The pool that every rank has."""

    kv_groups: tuple[KVGroup, ...]
    max_model_len: int | None
    warm_up: bool


class Fetch(Struct, tag=True, frozen=True):
    """Blocks of which each rank fetches its part from another engine."""

    number: int
    host: str
    port: int
    names: list[BlockHash]
    ends: list[BlockHash]  # see ``Missing``


class End(Struct, tag=True, frozen=True):
    """Write what is to be stored, and end."""


MOST = 1 << 32  # bytes of a payload: states of a prompt that is scored
HELLO = Decoder(RankHello)
OF_A_RANK: Decoder[Struct] = Decoder(
    Beat | RankFailed | RankFacts | FreeMemory | Ready | AdapterRead | Fetched | OfStep
)
OF_RANK_0: Decoder[Struct] = Decoder(
    Meet | RankRefused | Go | CountMemory | MakePool | ReadAdapter | Fetch | End | OfStep
)

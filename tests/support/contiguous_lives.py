"""Lives over reserved regions, which know neither windows nor sessions."""

from __future__ import annotations

from dataclasses import replace

from lives.script import Abort, Ask, Fault, Life, Reset, Settings, draw

from quire_lab.contiguous.allocator import ContiguousAllocator, Reservation

_LONGEST = 90  # more tokens than any request of a life takes


def regions(reservation: Reservation, settings: Settings) -> ContiguousAllocator:
    sizes = settings.blocks, settings.block_size
    return ContiguousAllocator(*sizes, reservation, _LONGEST, settings.host_blocks)


def life_in_regions(number: int) -> Life:
    life = draw(number)
    events = [event for event in life.events if isinstance(event, (Ask, Abort, Fault, Reset))]
    settings = replace(life.settings, windows=Settings().windows, forgets=None, states=0)
    if number % 2:  # regions of the longest have room, but not many
        settings = replace(settings, blocks=260 // settings.block_size)
    return replace(life, settings=settings, events=tuple(events))

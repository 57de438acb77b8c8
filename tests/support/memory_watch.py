"""What programs do to memory in Triton's interpreter, watched as compute-sanitizer does on a GPU.

A launch fails that reads or writes outside the tensors that it was given, whose programs touch
what another one writes (they run in any order, or at once), or that reads what nobody has written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

Addresses = Any  # np.ndarray of uint64

_ANYWHERE = ("copy_blocks",)  # programs that find addresses in what they read


class BadAccessError(AssertionError):
    """A program's access that a GPU need not survive, or whose result depends on chance."""


class _Extent(NamedTuple):
    """Bytes from the first element of a tensor to its last."""

    first: int
    end: int

    @classmethod
    def of(cls, tensor: Tensor) -> _Extent:
        last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        size = (last + 1) * tensor.itemsize if tensor.numel() else 0
        return cls(tensor.data_ptr(), tensor.data_ptr() + size)


class _Access(NamedTuple):
    program: int
    time: int
    addresses: Addresses


class _Launch:
    """The accesses of one launch, by the extent that they fall in."""

    def __init__(self, extents: list[_Extent], anywhere: bool) -> None:
        self._extents = extents
        self._anywhere = anywhere
        self.program = -1
        self._time = 0
        self._barriers: list[int] = []  # times at which a program's threads waited for each other
        self._loads: dict[_Extent, list[_Access]] = {}
        self._stores: dict[_Extent, list[_Access]] = {}

    def note(self, addresses: Addresses, size: int, is_store: bool) -> None:
        extent = self._containing(int(addresses.min()), int(addresses.max()) + size)
        accesses = self._stores if is_store else self._loads
        self._time += 1
        accesses.setdefault(extent, []).append(_Access(self.program, self._time, addresses))

    def note_barrier(self) -> None:
        self._time += 1
        self._barriers.append(self._time)

    def _containing(self, first: int, end: int) -> _Extent:
        for extent in self._extents:
            if extent.first <= first and end <= extent.end:
                return extent
        if self._anywhere:
            return _Extent(0, 0)
        raise BadAccessError(f"bytes {first} to {end} are in no tensor of {self._extents}")

    def check_order(self) -> None:
        """No element is written twice, or read by another program, or after it was written.

        Behind a barrier a program may read what it has written.
        """
        for extent, stores in self._stores.items():
            addresses = np.concatenate([access.addresses for access in stores])
            programs = np.concatenate([np.full(len(a.addresses), a.program) for a in stores])
            times = np.concatenate([np.full(len(a.addresses), a.time) for a in stores])
            order = np.argsort(addresses, kind="stable")
            addresses, programs, times = addresses[order], programs[order], times[order]
            if (addresses[1:] == addresses[:-1]).any():
                raise BadAccessError("an element is written twice")
            for load in self._loads.get(extent, ()):
                place = np.searchsorted(addresses, load.addresses).clip(max=len(addresses) - 1)
                shared = addresses[place] == load.addresses
                own = programs[place] == load.program
                early, rounds = times[place] > load.time, np.searchsorted(self._barriers, times)
                behind = rounds[place] < np.searchsorted(self._barriers, load.time)
                if (shared & ~(own & (early | behind))).any():
                    raise BadAccessError("an element is read where it may have been written")


class MemoryWatch:
    """Notes the accesses of all launches from now on."""

    def __init__(self) -> None:
        self._launch: _Launch | None = None
        self._blank: dict[_Extent, tuple[Tensor, Any]] = {}
        self._races_matter = True

    @contextmanager
    def launch(self, name: str, arguments: list[Any]) -> Iterator[None]:
        """Until its end, accesses are those of programs that were given ``arguments``."""
        extents = [_Extent.of(value) for value in arguments if isinstance(value, Tensor)]
        launch = self._launch = _Launch(extents, name in _ANYWHERE)
        try:
            yield
            if self._races_matter:
                launch.check_order()
        finally:
            self._launch = None

    @contextmanager
    def meaningless(self) -> Iterator[None]:
        """Meanwhile only bounds matter: nobody looks at what is computed."""
        self._races_matter = False
        try:
            yield
        finally:
            self._races_matter = True

    def begin_program(self) -> None:
        if self._launch is not None:
            self._launch.program += 1

    def barrier(self) -> None:
        if self._launch is not None:
            self._launch.note_barrier()

    def access(self, pointers: Addresses, mask: Any, size: int, is_store: bool) -> None:
        addresses = pointers[mask.astype(bool)]
        if self._launch is None or not addresses.size:
            return
        self._launch.note(addresses, size, is_store)
        for extent, (_, written) in self._blank.items():
            inside = (extent.first <= addresses) & (addresses < extent.end)
            elements = (addresses[inside] - np.uint64(extent.first)) // np.uint64(size)
            if is_store:
                written[elements] = True
            elif not written[elements].all():
                raise BadAccessError("an element is read that nobody has written")

    @contextmanager
    def blank_tensors(self) -> Iterator[None]:
        """Meanwhile tensors that are made without contents must be written before they are read."""
        originals = torch.Tensor.new_empty, torch.empty_like

        def noted(make: Any) -> Any:
            def made(*arguments: Any, **named: Any) -> Tensor:
                tensor: Tensor = make(*arguments, **named)
                written = np.zeros(tensor.numel(), dtype=bool)
                self._blank[_Extent.of(tensor)] = tensor, written
                return tensor

            return made

        torch.Tensor.new_empty, torch.empty_like = map(noted, originals)  # type: ignore[method-assign]
        try:
            yield
        finally:
            torch.Tensor.new_empty, torch.empty_like = originals  # type: ignore[method-assign]
            self._blank.clear()


def watch_interpreter() -> MemoryWatch:
    """The watch over Triton's interpreter, set up when it is first asked for."""
    from triton.runtime import interpreter

    builder: Any = interpreter.interpreter_builder
    if hasattr(builder, "memory_watch"):
        found: MemoryWatch = builder.memory_watch
        return found
    watch = builder.memory_watch = MemoryWatch()
    load, store = builder.create_masked_load, builder.create_masked_store
    place, execute = builder.set_grid_idx, interpreter.GridExecutor.__call__

    def watched_load(pointers: Any, mask: Any, *rest: Any) -> Any:
        size = pointers.get_element_ty().primitive_bitwidth // 8
        watch.access(pointers.data, mask.data, size, is_store=False)
        return load(pointers, mask, *rest)

    def watched_store(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        size = pointers.get_element_ty().primitive_bitwidth // 8
        watch.access(pointers.data, mask.data, size, is_store=True)
        return store(pointers, value, mask, *rest)

    def watched_place(*index: int) -> None:
        watch.begin_program()
        place(*index)

    def watched_barrier() -> None:
        watch.barrier()

    def watched_launch(self: Any, *arguments: Any, **named: Any) -> Any:
        with watch.launch(self.fn.__name__, [*arguments, *named.values()]):
            return execute(self, *arguments, **named)

    builder.create_masked_load, builder.create_masked_store = watched_load, watched_store
    builder.set_grid_idx, builder.create_barrier = watched_place, watched_barrier
    interpreter.GridExecutor.__call__ = watched_launch
    return watch

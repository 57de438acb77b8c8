"""The adapters of an engine: found, checked against its model, and read by all of its ranks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from quire.capabilities.adapters.checkpoint import AdapterWeights, check_adapter
from quire.capabilities.adapters.config import LoraModule
from quire.capabilities.adapters.served import Adapters, AdapterSource
from quire.core.errors import ConfigError, ModelError, QuireError, reason
from quire.core.protocol import Adapter
from quire.kernels.adapters import OwnTables, packed_bytes
from quire.kernels.dispatch import choose_kernels, choose_products
from quire.kernels.products import Products
from quire.models.adaptable import adaptable, num_layers, tables
from quire.models.base import Model
from quire.models.decoder import DecoderModel
from quire.models.linear import PlainLinear, pack

logger = logging.getLogger(__name__)

Check = Callable[[Path], AdapterSource]
"""Finds the adapter in a directory, or raises a ModelError."""


_Answer = TypeVar("_Answer", bound=Struct)


class ReadAdapter(Struct, tag=True, frozen=True):
    """Rank 0's word to read an adapter. kept: fingerprints of those that stay in memory."""

    path: str
    fingerprint: bytes
    kept: list[bytes]


class AdapterRead(Struct, tag=True, frozen=True):
    """The answer. error: what went wrong, if anything did."""

    error: str


class OtherRank(Protocol):
    """Another rank."""

    rank: int


class Readers(Protocol):
    """The other ranks, as rank 0 speaks with them."""

    @property
    def members(self) -> Sequence[OtherRank]: ...

    def say(self, message: Struct) -> None:
        """Send a message to all of them."""
        ...

    def answers(self, kind: type[_Answer]) -> Sequence[_Answer]:
        """The next message of each, in the order of ``members``."""
        ...


def adapter_check(model: Model, instruction_set: str, max_rank: int) -> Check:
    """A check of adapters for a model. ConfigError: kernels multiply none of its projections."""
    modules, kernels = adaptable(model), choose_kernels(model.dtype, instruction_set)
    if not modules:
        raise ConfigError("enable_lora needs projections that the kernels multiply: here are none")
    layers, dtype = num_layers(model), model.dtype

    def check(path: Path) -> AdapterSource:
        if not path.is_dir():
            raise ModelError(f"adapter {path} is not a directory")
        found = check_adapter(path, modules, max_rank, tables(model))

        def load() -> tuple[Any, OwnTables]:
            weights = found.read()
            kept = kernels.keep_adapter(weights.updates, layers, dtype)
            # Of products of its own, whose memory goes with it.
            return kept, _tables(model, weights, choose_products(instruction_set))

        table_bytes = found.table_weights * dtype.itemsize
        return AdapterSource(found.fingerprint, found.path, load, table_bytes)

    return check


def _tables(model: Model, weights: AdapterWeights, products: Products | None) -> OwnTables:
    """The adapter's tables in the model's type, even where the model's own are rounded."""
    rows = logits = None
    if weights.embedding is not None:
        table = PlainLinear(weights.embedding.weight.to(model.dtype))
        rows = partial(table.rows, dtype=model.dtype)
    if weights.head is not None:
        assert isinstance(model, DecoderModel), "no other has tables"
        weight, bias = weights.head.weight.to(model.dtype), weights.head.bias
        bias = None if bias is None else bias.to(model.dtype)
        head = PlainLinear(weight, bias) if products is None else pack(products, weight, bias)
        logits = model.logits_by(head)
    return OwnTables(rows, logits)


def serve_adapters(
    modules: Iterable[LoraModule], most_kept: int, check: Check, ranks: Readers | None
) -> tuple[Adapters, int]:
    """The adapters that settings name, none yet in memory, and the bytes of the largest tables.

    ModelError: one cannot be served. ranks: the others, which read them too.
    """

    def check_for_all(path: Path) -> AdapterSource:
        source = check(path)
        return source if ranks is None else _on_all(ranks, source, lambda: list(adapters.weights))

    def check_within(path: Path) -> AdapterSource:
        source = check_for_all(path)
        if source.table_bytes > room:
            raise ModelError(
                f"{path}: its modules_to_save take {source.table_bytes:,} bytes, and there is room "
                f"for {room:,}; name one that takes as much with --lora-modules at the start"
            )
        return source

    adapters = Adapters(most_kept, check_within)
    named = [(one, check_for_all(Path(one.path).expanduser())) for one in modules]
    room = max((source.table_bytes for _, source in named), default=0)
    for module, source in named:
        adapters.add(module.name, source, module.base_model_name)
    return adapters, room


def most_bytes(model: Model, rank: int) -> int:
    """The bytes of an adapter of this rank that changes all that can be adapted."""
    held = [one.held for one in adaptable(model).values()]
    return sum(packed_bytes(rank, inputs, outputs, model.dtype) for outputs, inputs in held)


def _on_all(
    ranks: Readers, source: AdapterSource, kept: Callable[[], Iterable[Adapter]]
) -> AdapterSource:
    """A source whose weights all ranks read at once, each its part.

    kept: those that rank 0 has in memory then; the others let go of the rest.
    """

    def load() -> Any:
        fingerprints = [adapter.fingerprint for adapter in kept()]
        ranks.say(ReadAdapter(str(source.path), source.fingerprint, fingerprints))
        try:
            weights = source.load()
        finally:
            answers = ranks.answers(AdapterRead)
        for member, answer in zip(ranks.members, answers, strict=True):
            if answer.error:
                raise ModelError(f"rank {member.rank}: {answer.error}")
        return weights

    return source._replace(load=load)


class HeldAdapters:
    """The adapters of a rank other than 0, read and dropped as rank 0 says."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self.weights: dict[Adapter, Any] = {}

    def load(self, asked: ReadAdapter) -> AdapterRead:
        """The answer to rank 0."""
        for adapter in list(self.weights):
            if adapter.fingerprint not in asked.kept:
                del self.weights[adapter]
        try:
            source = self._check(Path(asked.path))
            if source.fingerprint != asked.fingerprint:
                return AdapterRead(f"{source.path} is another adapter than on rank 0")
            self.weights[Adapter(source.fingerprint, "")] = source.load()
        except QuireError as error:
            return AdapterRead(str(error))
        except Exception as error:  # whatever it is, rank 0 waits for an answer
            logger.exception("adapter %s cannot be read", asked.path)
            return AdapterRead(reason(error))
        return AdapterRead("")

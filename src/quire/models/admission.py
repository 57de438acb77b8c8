"""Whether weights fit in memory, and in which form they would, before any is read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from quire.core.errors import ConfigError, ModelError
from quire.models.linear import LinearReader, Quantization
from quire.models.shard import Shard
from quire.models.weights import Weights

_BY_SIZE = (Quantization.int8, Quantization.int4)  # the one that loses least first

Admit = Callable[[int], None]
"""Told the bytes of memory that are needed; ModelError where they are not to be had."""


class WeightAdmission:
    """The memory that a checkpoint's weights take, all of them or a rank's part."""

    def __init__(self, weights: Weights, linears: LinearReader, shard: Shard) -> None:
        self._weights, self._shard = weights, shard
        self._code_bytes = linears.code_bytes

    def ask(
        self,
        admit: Admit,
        quantization: str | None,
        experts_path: Path | None,
        *,
        may_round: bool,
        whole_experts: bool = False,
    ) -> None:
        """Call ``admit`` with the bytes, and check the room in ``experts_path``.

        A refusal names the first rounded form that would fit, and what would fit with experts in a
        file.

        may_round: whether the weights could be rounded, and are not. whole_experts: whether all
            experts are read before any is rounded.

        Raises:
            ConfigError: there is no room for experts in ``experts_path``, or there are no experts.
        """
        in_file = experts_path is not None
        if whole_experts and quantization is not None:
            admit = partial(_admit_beside, admit, self.of_experts(None))
        if experts_path is not None:
            self._check_room(experts_path, quantization)
        try:
            admit(self.in_memory(quantization, in_file=in_file))
        except ModelError as error:
            raise ModelError(
                f"{error}{self._rounded(admit, in_file) if may_round else ''}"
                f"{'' if in_file else self._with_file(admit, quantization)}"
            ) from None

    def in_memory(self, quantization: str | None, *, in_file: bool) -> int:
        """Bytes that loading takes: all weights, or all but experts', and in main memory one more.

        The one more is the largest, as it is read. For a rank it is its part; weights that each
        rank has in whole (norms, routers) are too small to count.
        """
        weights = self._weights
        total, largest = (
            part // self._shard.size
            for part in weights.bytes_needed(self._code_bytes, experts=not in_file)
        )
        if weights.device.type != "cpu":
            return total
        return self._rounded_to(quantization, total) + largest

    def of_experts(self, quantization: str | None) -> int:
        """Bytes of all experts, as they are kept."""
        every, rest = (
            self._weights.bytes_needed(self._code_bytes, experts=each)[0] for each in (True, False)
        )
        return self._rounded_to(quantization, every - rest) // self._shard.size

    def _rounded_to(self, quantization: str | None, num_bytes: int) -> int:
        size = self._weights.dtype.itemsize
        if quantization is None or self._code_bytes:  # what is rounded already hardly shrinks
            return num_bytes
        kept = 0.625 if Quantization(quantization).has_4_bits else 1 + 2 / 64
        return int(num_bytes * kept / size)

    def _check_room(self, directory: Path, quantization: str | None) -> None:
        needed, free = self.of_experts(quantization), shutil.disk_usage(directory).free
        if not needed:
            raise ConfigError("experts_path is for mixtures of experts, and this model has none")
        if needed > free:
            raise ConfigError(
                f"experts_path: the experts take {needed:,} bytes, but only {free:,} are free in "
                f"{directory}"
            )

    def _rounded(self, admit: Admit, in_file: bool) -> str:
        for form in _BY_SIZE:
            num_bytes = self.in_memory(form.value, in_file=in_file)
            if _admits(admit, num_bytes):
                return f". With --quantization {form.value} it takes {num_bytes:,}"
        return ""

    def _with_file(self, admit: Admit, quantization: str | None) -> str:
        experts = self.of_experts(quantization)
        num_bytes = self.in_memory(quantization, in_file=True)
        if not experts or not _admits(admit, num_bytes):
            return ""
        return (
            f". With --experts-path DIR it takes {num_bytes:,}, and its experts {experts:,} in a "
            "file, slower"
        )


def _admit_beside(admit: Admit, others: int, num_bytes: int) -> None:
    admit(others + num_bytes)


def _admits(admit: Admit, num_bytes: int) -> bool:
    try:
        admit(num_bytes)
    except ModelError:
        return False
    return True

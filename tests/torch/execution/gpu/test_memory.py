"""The pool's size from measured figures, on a device that is made up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from quire.core.errors import ConfigError, ModelError
from quire.execution.gpu import memory
from quire.execution.gpu.memory import MemoryPlan, one_at_a_time, run_or_refuse

GIB = 2**30


@dataclass
class Device:
    """Shared by processes, each of which sees its own share beside what is free."""

    total: int
    taken: dict[str, int] = field(default_factory=dict)

    def free(self) -> int:
        return self.total - sum(self.taken.values())


@dataclass
class Process:
    """``DeviceMemory`` of one process."""

    device: Device
    name: str
    in_use: int = 0
    kept: int = 0  # for later use
    driver: int = 0
    highest: int = 0

    @property
    def total(self) -> int:
        return self.device.total

    def take(self, num_bytes: int) -> None:
        self.in_use += num_bytes
        self._tell()

    def release(self, num_bytes: int) -> None:
        self.in_use -= num_bytes
        self.kept += num_bytes

    def load_code(self, num_bytes: int) -> None:
        self.driver += num_bytes
        self._tell()

    def free(self) -> int:
        return self.device.free()

    def held(self) -> int:
        return self.in_use + self.kept

    def peak(self) -> int:
        return self.highest

    def trim(self) -> None:
        self.kept = 0
        self.highest = self.in_use
        self._tell()

    def _tell(self) -> None:
        self.highest = max(self.highest, self.held())
        self.device.taken[self.name] = self.held() + self.driver


def rehearsal(process: Process, working: int, code: int) -> Callable[[], None]:
    def run() -> None:
        process.load_code(code)
        process.take(working)
        process.release(working)

    return run


def test_the_pool_is_what_weights_work_and_driver_leave() -> None:
    process = Process(Device(80 * GIB), "a")
    plan = MemoryPlan(process, 0.9)
    process.take(16 * GIB)
    assert plan.pool_bytes(rehearsal(process, 3 * GIB, GIB)) == (72 - 16 - 3 - 1) * GIB


def test_what_the_rehearsal_keeps_counts_once() -> None:
    """Recorded launches hold their memory for as long as they are kept."""
    process = Process(Device(80 * GIB), "a")
    plan = MemoryPlan(process, 0.5)

    class Kept:
        def __init__(self) -> None:
            process.take(2 * GIB)

        def __del__(self) -> None:
            process.release(2 * GIB)

    def rehearse() -> Kept:
        kept = Kept()
        rehearsal(process, 3 * GIB, 0)()
        return kept

    assert plan.pool_bytes(rehearse) == (40 - 5) * GIB
    assert process.held() == 0


def test_two_engines_beside_each_other_get_equal_pools() -> None:
    device = Device(80 * GIB)
    pools = []
    for name in ("a", "b"):
        process = Process(device, name)
        plan = MemoryPlan(process, 0.45)
        process.take(10 * GIB)
        pools.append(plan.pool_bytes(rehearsal(process, 2 * GIB, GIB)))
        process.take(pools[-1])
    assert pools == [(36 - 13) * GIB] * 2
    assert device.free() > 0


def test_a_share_that_is_not_free_is_refused_with_what_is_possible() -> None:
    device = Device(80 * GIB, {"other": 40 * GIB})
    message = r"gpu_memory_utilization 0.9 is 72.00 GiB.*40.00 GiB.*80.00 GiB.*lower it to 0.5"
    with pytest.raises(ConfigError, match=message):
        MemoryPlan(Process(device, "a"), 0.9)


def test_weights_larger_than_the_share_are_refused_before_they_are_loaded() -> None:
    plan = MemoryPlan(Process(Device(24 * GIB), "a"), 0.5)
    plan.check_weights(12 * GIB)
    with pytest.raises(ModelError, match=r"weights are 16.00 GiB.*12.00 GiB of.*24.00 GiB"):
        plan.check_weights(16 * GIB)


def test_nothing_left_for_the_pool_is_refused_with_the_figures() -> None:
    process = Process(Device(20 * GIB), "a")
    plan = MemoryPlan(process, 0.9)
    process.take(16 * GIB)
    message = r"weights take 16.00 GiB, the largest step 2.00 GiB and the driver 512.0 MiB"
    with pytest.raises(ConfigError, match=message):
        plan.pool_bytes(rehearsal(process, 2 * GIB, GIB // 2))


def test_what_others_took_meanwhile_is_not_promised() -> None:
    device = Device(80 * GIB)
    process = Process(device, "a")
    plan = MemoryPlan(process, 0.9)
    process.take(10 * GIB)

    def rehearse() -> None:
        rehearsal(process, 2 * GIB, 0)()
        device.taken["late"] = 30 * GIB

    assert plan.pool_bytes(rehearse) <= device.free() - 2 * GIB


def test_a_step_that_does_not_fit_names_the_settings() -> None:
    def fail() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4 GiB.\nSee more")

    with pytest.raises(ConfigError, match=r"max_num_batched_tokens or max_num_seqs.*4 GiB\.\)"):
        run_or_refuse(fail)


def test_engines_start_one_at_a_time(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path_factory.mktemp("locks")
    monkeypatch.setattr(memory.tempfile, "gettempdir", lambda: str(directory))
    inside, order = threading.Event(), []

    def wait_for_turn() -> None:
        inside.wait()
        with one_at_a_time("GPU-1"):
            order.append("second")

    thread = threading.Thread(target=wait_for_turn)
    thread.start()
    with one_at_a_time("GPU-1"):
        inside.set()
        with one_at_a_time("GPU-2"):  # another device
            order.append("first")
        thread.join(timeout=0.2)
        assert order == ["first"]
    thread.join()
    assert order == ["first", "second"]

"""What a Ray of our own would leave behind is ended, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from quire_cluster.keeper import _alive, _below, _facts

PROGRAM = """
import subprocess, sys
sys.path[:0] = {path}
from quire_cluster.keeper import Keeper
keeper = Keeper(0.2)
script = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True); input()"
raylet = subprocess.Popen([sys.executable, "-S", "-c", script], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True)
agent = raylet.stdout.readline().strip()
keeper.watch()
later = subprocess.Popen(["sleep", "60"])
print(agent, raylet.pid, keeper._process.pid, later.pid, flush=True)
if sys.stdin.readline():
    later.kill()
    keeper.close()
    print("closed", flush=True)
"""


def started() -> tuple[subprocess.Popen[str], list[tuple[int, str]]]:
    """A process with a keeper, and: an agent below another process, that one, the keeper, another
    process of which nobody told."""
    program = PROGRAM.format(path=sys.path)
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", program],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    pids = list(map(int, process.stdout.readline().split()))
    told = [(pid, _facts(pid)) for pid in pids]
    return process, [(pid, facts[2]) for pid, facts in told if facts is not None]


def ended(one: tuple[int, str]) -> bool:
    deadline = time.monotonic() + 60
    while _alive(*one):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_who_is_killed_leaves_no_agents() -> None:
    process, (agent, raylet, keeper, later) = started()
    with process:
        assert {one[0] for one in (agent, raylet, keeper, later)} == {
            pid for pid, _ in _below(process.pid)
        }
        process.kill()
    assert ended(agent) and ended(raylet) and ended(keeper)
    assert _alive(*later), "nobody has told of it"
    subprocess.run(["kill", str(later[0])], check=True)


def test_an_end_waits_until_all_are_gone() -> None:
    process, (agent, raylet, keeper, _) = started()
    with process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "closed\n"
        assert not (_alive(*agent) or _alive(*raylet) or _alive(*keeper))


def test_another_process_with_the_same_number_is_left_alone(tmp_path: Path) -> None:
    """Numbers come round: it is known by when it began as well."""
    with subprocess.Popen(["sleep", "60"]) as other:
        keeper = [sys.executable, "-I", "-S", "cluster/src/quire_cluster/keeper.py", "0"]
        keeper[3] = str(Path(sys.modules[_alive.__module__].__file__ or ""))
        subprocess.run(keeper, input=f"{other.pid} 12345\n", text=True, check=True, timeout=60)
        assert other.poll() is None
        other.kill()

"""Two replicas of the demonstration model on a real Ray, started as users start them."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import openai
import psutil
import pytest
from openai import OpenAI

from support.vllm_events import BlockStored, replay

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

KEY = "secret"
PATIENCE = 90.0  # seconds
PROMPT = "The town by the river " * 30
REPLICA = "ray::ServeReplica:quire:"
_FIRST = 21_000 + os.getpid() % 9_000  # of the ports where events are published
_EVENTS = json.dumps({
    "enable_kv_cache_events": True,
    "endpoint": f"tcp://*:{_FIRST}",
    "replay_endpoint": f"tcp://*:{_FIRST + 10}",
})  # fmt: skip
_GIVEN = {"replicas": 2, "kv_events_config": _EVENTS, "port": 0, "api_key": KEY,
          "kv_cache_memory_bytes": "32MiB", "max_model_len": 1024, "max_body_bytes": 65536,
          "shutdown_timeout": 60.0, "strict_model_name": True}  # fmt: skip


class Deployment:
    """A running ``quire deploy``, and clients for it."""

    def __init__(self, process: subprocess.Popen[str], env: dict[str, str], told: str) -> None:
        self.process, self.env, self.told = process, env, told
        self.url, self.ray = (
            found[1] for pattern in (r"running on (\S+)", r"Ray is at (\S+),")
            if (found := re.search(pattern, told))
        )  # fmt: skip
        self.http = httpx.Client(
            base_url=self.url, timeout=PATIENCE, headers={"authorization": f"Bearer {KEY}"}
        )
        self.openai = OpenAI(
            base_url=f"{self.url}/v1", api_key=KEY, max_retries=0, timeout=PATIENCE
        )

    def metric(self, name: str) -> dict[str, float]:
        """By replica."""
        text = self.http.get("/metrics").text
        found = re.findall(rf'^quire:{name}{{replica="(\w+)".*?}} (\S+)$', text, re.MULTILINE)
        return {replica: float(value) for replica, value in found}

    def engines(self, deployment: str = "Engine") -> list[psutil.Process]:
        """The processes of the replicas."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        return [one for one in below if _name(one).startswith(f"{REPLICA}{deployment}")]

    @contextmanager
    def busy(self) -> Iterator[None]:
        """With a long stream under way, which is closed at the end."""
        stream = self.openai.completions.create(
            model="quire-demo", prompt="x", max_tokens=900, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        next(iter(stream))
        try:
            yield
        finally:
            stream.close()

    def write(self, length: int = 400, prompt: str = PROMPT, salt: str = "s") -> tuple[str, str]:
        """What is streamed, and how it ended: with a reason, or with an error's code."""
        text, end = "", "nothing"
        try:
            for chunk in self.openai.completions.create(
                model="quire-demo", prompt=prompt, max_tokens=length, stream=True, temperature=0,
                extra_body={"ignore_eos": True, "cache_salt": salt},
            ):  # fmt: skip
                text += chunk.choices[0].text
                end = chunk.choices[0].finish_reason or end
        except openai.APIError as error:
            end = str(error.code)
        return text, end


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "this never became true"
        time.sleep(0.1)


def seen_everywhere(
    deployed: Deployment, pool: ThreadPoolExecutor, length: int, each: int
) -> list[Future[tuple[str, str]]]:
    """Streams of two prompts, while every replica has some; others where these end too soon."""
    streams: list[Future[tuple[str, str]]] = []

    def are_seen() -> bool:
        if all(stream.done() for stream in streams):
            streams[:] = [
                pool.submit(deployed.write, length, prompt)
                for prompt in (PROMPT, "Once")
                for _ in range(each)
            ]
        return all(deployed.metric("num_requests_running").values())

    until(are_seen)
    return streams


@contextmanager
def deployment() -> Iterator[Deployment]:
    directory = tempfile.mkdtemp(prefix="quire-", dir="/tmp")  # sockets' names must be short
    env = {**os.environ, "RAY_TMPDIR": directory, "RAY_AUTH_MODE": "disabled"}
    given = {f"--{name.replace('_', '-')}": value for name, value in _GIVEN.items()}
    flags = (name if value is True else f"{name}={value}" for name, value in given.items())
    command = [sys.executable, "-m", "quire", "deploy", *flags]
    with (Path(directory) / "errors").open("w+") as errors:
        process = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=directory
        )
        assert process.stdout is not None
        below: list[psutil.Process] = []
        try:
            told = process.stdout.readline() + process.stdout.readline()
            assert told, Path(errors.name).read_text()
            below = psutil.Process(process.pid).children(recursive=True)
            yield Deployment(process, env, told)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                assert process.wait(PATIENCE) == 0
                assert not psutil.wait_procs(below, timeout=60)[1], "processes are left"
            finally:
                for one in (*below, process):
                    with suppress(psutil.NoSuchProcess):
                        one.kill()
                process.stdout.close()
                shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def deployed() -> Iterator[Deployment]:
    with deployment() as running, running.http, running.openai:
        yield running


def test_replicas_answer_as_one_server_does(deployed: Deployment) -> None:
    asked = {"model": "quire-demo", "temperature": 0, "max_tokens": 24,
             "messages": [{"role": "user", "content": "What is a river?"}]}  # fmt: skip
    whole = deployed.openai.chat.completions.create(**asked)
    streamed = list(deployed.openai.chat.completions.create(**asked, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
    assert text == whole.choices[0].message.content
    assert streamed[-1].choices[0].finish_reason == whole.choices[0].finish_reason

    headers = deployed.http.get("/v1/models", headers={"x-request-id": "mine"}).headers
    assert headers.get_list("x-request-id") == ["mine"]
    assert [model.id for model in deployed.openai.models.list()] == ["quire-demo"]
    assert deployed.http.get("/health").status_code == 200
    assert len(deployed.metric("num_requests_running")) == 2


@pytest.mark.parametrize(
    ("path", "body", "key", "status", "said"),
    [
        ("/v1/completions", b'{"prompt": []}', KEY, 400, '"param":"prompt"'),
        ("/v1/completions", b'{"prompt"', KEY, 400, "JSON"),
        ("/v1/completions", b'{"model": "x", "prompt": "x"}', KEY, 404, "model_not_found"),
        ("/v1/completion", b"{}", KEY, 404, "did you mean /v1/completions?"),
        ("/v1/completions", b" " * 99_999, KEY, 413, "--max-body-bytes"),
        ("/v1/messages", b"{}", "wrong", 401, '"type":"authentication_error"'),
    ],
)
def test_refusals_are_a_server_s(
    deployed: Deployment, path: str, body: bytes, key: str, status: int, said: str
) -> None:
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    answer = deployed.http.post(path, content=body, headers=headers)
    assert answer.status_code == status
    assert said in answer.text


def test_a_prefix_goes_where_it_was_computed(deployed: Deployment) -> None:
    before = deployed.metric("prefix_cache_hits_total")
    for number in range(6):
        deployed.write(2, f"{PROMPT} {number}")
    after = deployed.metric("prefix_cache_hits_total")
    hits = [after[name] - before[name] for name in before]
    assert min(hits) == 0
    assert max(hits) >= 4 * 150


def test_each_replica_publishes_what_it_holds(deployed: Deployment) -> None:
    """At a port of its own, under a number of its own; the line at the start says where."""
    assert f"from tcp://*:{_FIRST} to tcp://*:{_FIRST + 1}" in deployed.told
    deployed.write(2, f"Another {PROMPT}")
    text = deployed.http.get("/metrics").text
    pattern = (
        r'^quire:kv_events_info{replica="(\w+)",data_parallel_rank="(\d)",'
        r'endpoint="(\S+?)",.*replay_endpoint="(\S+?)"} 1.0$'
    )
    told = re.findall(pattern, text, re.MULTILINE)
    assert sorted((number, int(at.rpartition(":")[2])) for _, number, at, _ in told) == [
        ("0", _FIRST), ("1", _FIRST + 1),
    ]  # fmt: skip
    for replica, number, _, address in told:
        held = re.search(rf'kv_cache_slots{{replica="{replica}",.*state="cached"}} (\S+)', text)
        assert held is not None and float(held[1]) > 0
        found: set[int | bytes] = set()
        for _, batch in replay(address.replace("*", "127.0.0.1")):
            assert batch.data_parallel_rank == int(number)
            for event in batch.events:
                assert isinstance(event, BlockStored)
                found |= set(event.block_hashes)
        assert 16 * len(found) == float(held[1])


def sessions_at_both(deployed: Deployment) -> list[str]:
    """One at each replica: the more that are busy, the likelier that the next one is elsewhere."""
    found: dict[str, str] = {}
    with ExitStack() as streams:
        for _ in range(8):
            own_id = deployed.http.post("/v1/sessions", json={}).json()["id"]
            if found.setdefault(own_id[:16], own_id) != own_id:
                assert deployed.http.delete(f"/v1/sessions/{own_id}").status_code == 200
            if len(found) == 2:
                return list(found.values())
            streams.enter_context(deployed.busy())
    raise AssertionError("no session was opened at the other replica")


def test_what_is_kept_is_found_again(deployed: Deployment) -> None:
    http, openai_ = deployed.http, deployed.openai
    ids = sessions_at_both(deployed)
    for own_id in [*ids, *ids]:
        assert http.post(f"/v1/sessions/{own_id}/append", json={"input": "x"}).status_code == 200
    listed = http.get("/v1/sessions").json()["data"]
    assert {one["id"] for one in listed} == set(ids)
    assert len({one["num_tokens"] for one in listed}) == 1
    for own_id in ids:
        assert http.delete(f"/v1/sessions/{own_id}").status_code == 200
    for _ in range(3):
        first = openai_.responses.create(model="quire-demo", input="hi", max_output_tokens=4)
        following = openai_.responses.create(
            model="quire-demo", input="go on", max_output_tokens=4, previous_response_id=first.id
        )
        assert openai_.responses.retrieve(following.id).previous_response_id == first.id


def test_who_leaves_is_not_computed_for(deployed: Deployment) -> None:
    with deployed.busy():
        until(lambda: sum(deployed.metric("num_requests_running").values()) == 1)
    until(lambda: sum(deployed.metric("num_requests_running").values()) == 0)
    aborted = deployed.http.get("/metrics").text
    assert re.search(r'finished_reason="abort".* [1-9]', aborted)


def test_a_replica_that_is_killed(deployed: Deployment) -> None:
    expected, end = deployed.write(700)
    assert end == "length"
    names, engines = set(deployed.metric("num_requests_running")), deployed.engines()
    assert len(engines) == 2
    with ThreadPoolExecutor(8) as pool:
        streams = seen_everywhere(deployed, pool, length=700, each=4)
        engines[0].kill()
        told = [stream.result(PATIENCE) for stream in streams]
    ends = [end for _, end in told]
    assert set(ends) == {"length", "engine_unavailable"}, ends
    for text, end in told[:4]:
        assert expected == text if end == "length" else expected.startswith(text)
    assert deployed.write(700) == (expected, "length")  # at once, by the one that is left
    until(lambda: len(set(deployed.metric("num_requests_running")) - names) == 1)
    assert len(deployed.metric("num_requests_running")) == 2


def serve_with_prefill(deployed: Deployment) -> None:
    """In place of two, one and one that computes prompts for it, by Ray Serve's own command."""
    given = {**_GIVEN, "replicas": 1, "prefill_replicas": 1, "threads": 1}
    del given["port"]
    command = [
        *(sys.executable, "-m", "ray.serve.scripts", "run", "--non-blocking"),
        *("--address", deployed.ray, "--name", "quire", "quire_cluster.serve:build_app"),
        *(f"{name}={value}" for name, value in given.items()),
    ]
    done = subprocess.run(command, env=deployed.env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_replicas_that_leave_finish_their_streams(deployed: Deployment) -> None:
    expected, names = deployed.write(900)[0], set(deployed.metric("num_requests_running"))
    with ThreadPoolExecutor(4) as pool:
        streams = seen_everywhere(deployed, pool, length=900, each=2)
        serve_with_prefill(deployed)
        told = [stream.result(PATIENCE) for stream in streams]
    assert [end for _, end in told] == ["length"] * 4
    assert {text for text, _ in told[:2]} == {expected}
    until(lambda: len(deployed.engines()) == 1)
    assert not set(deployed.metric("num_requests_running")) & names


def test_prompts_are_computed_by_another_that_may_be_killed(deployed: Deployment) -> None:
    """A recompute, and nothing else: all texts are right, none hangs."""
    if not deployed.engines("Prefill"):
        serve_with_prefill(deployed)
    prompts = [f"{number} {PROMPT}{PROMPT}" for number in range(4)]  # of some 480 tokens
    salts = map(str, itertools.count())

    def has_fetched() -> bool:
        """Where nobody answers in time, nobody is asked for a while."""
        deployed.write(1, prompts[0], next(salts))
        return sum(deployed.metric("kv_transfer_fetched_blocks_total").values()) >= 29

    until(has_fetched)
    expected = [deployed.write(60, each, next(salts)) for each in prompts]
    told = deployed.http.get("/metrics").text
    roles = re.findall(r'^quire:num_requests_running{.*role="(\w+)"', told, re.MULTILINE)
    assert sorted(roles) == ["decode", "prefill"]
    (prefill,) = deployed.engines("Prefill")
    with ThreadPoolExecutor(4) as pool:
        streams = [pool.submit(deployed.write, 60, prompts[i % 4], next(salts)) for i in range(12)]
        streams[0].result(PATIENCE)
        prefill.kill()
        texts = [stream.result(PATIENCE) for stream in streams]
    assert texts == expected * 3
    assert {end for _, end in texts} == {"length"}


def test_the_end_waits_for_streams(deployed: Deployment) -> None:
    """And afterwards nothing is left, which the deployment's own end looks for."""
    told: list[tuple[str, str]] = []
    stream = threading.Thread(target=lambda: told.append(deployed.write(900)))
    stream.start()
    until(lambda: sum(deployed.metric("num_requests_running").values()) > 0)
    deployed.process.send_signal(signal.SIGTERM)
    until(lambda: deployed.http.get("/health").status_code == 503)
    refused = deployed.http.post("/v1/completions", json={"prompt": "x"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    assert refused.headers["retry-after"]
    stream.join(PATIENCE)
    assert told[0][1] == "length"

"""Adapters as models of a real server: named, listed, loaded and let go under load."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from quire.capabilities.adapters.served import Adapters
from quire.core.errors import ConfigError
from quire.engine.assembly import build_engine
from quire.engine.config import EngineConfig
from quire.engine.engine import Engine
from quire.http.app import create_app
from quire.http.config.server import ServerConfig
from quire.http.serving import Server
from support.live_server import eventually
from support.lora import save_adapter
from support.small_models import make_model

PROMPT = [*range(20, 45)]


class Served:
    """A small model with one adapter, and more that may be loaded."""

    def __init__(self, server: Server, engine: Engine, directory: Path) -> None:
        url = f"http://127.0.0.1:{server.port}"
        self.http = httpx.Client(base_url=url, timeout=60)
        self.server, self.engine, self.directory = server, engine, directory

    @property
    def adapters(self) -> Adapters:
        adapters = self.engine.capabilities.adapters
        assert adapters is not None
        return adapters

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def complete(self, model: str, **more: Any) -> httpx.Response:
        body = {"model": model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, **more}
        return self.post("/v1/completions", **body)

    def text(self, model: str) -> str:
        answer = self.complete(model, return_token_ids=True)
        assert answer.status_code == 200 and answer.json()["model"] == model
        return str(answer.json()["choices"][0]["token_ids"])

    def load(self, name: str, path: str, **more: Any) -> httpx.Response:
        return self.post("/v1/load_lora_adapter", lora_name=name, lora_path=path, **more)

    def hold(self, name: str) -> threading.Event:
        """From now on the adapter's files are read only once the event is set."""
        adapter, read = self.adapters.find(name), threading.Event()
        source = self.adapters._sources[adapter]

        def load() -> Any:
            assert read.wait(20)
            return source.load()

        self.adapters._sources[adapter] = source._replace(load=load)
        self.adapters.weights.pop(adapter, None)
        return read


@contextmanager
def serving(root: Path, **settings: Any) -> Iterator[Served]:
    config = ServerConfig(
        host="127.0.0.1",
        port=0,
        allow_runtime_lora_updating=True,
        lora_directory=str(root / "more"),
        **settings,
    )
    options = {"kv_cache_memory_bytes": "4MiB", "enable_lora": True, "max_cpu_loras": 2}
    modules = [f'{{"name": "first", "path": "{root / "first"}", "base_model_name": "theirs"}}']
    engine, _ = build_engine(EngineConfig(str(root / "model"), lora_modules=modules, **options))
    server = Server(create_app(engine, ["base"], config), config)
    thread = threading.Thread(target=server.run)
    thread.start()
    eventually(lambda: server.started)
    served = Served(server, engine, root)
    with served.http:
        yield served
    server.should_exit = True
    thread.join(20)
    assert not thread.is_alive()
    usage = engine.scheduler.allocator.usage()
    assert usage.cached + usage.free == usage.capacity, "leaked blocks"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    model = make_model("llama", root / "model")
    save_adapter(root / "first", model, seed=1)
    for number in range(3):
        save_adapter(root / "more" / f"m{number}", model, seed=10 + number)
    save_adapter(root / "more" / "wide", model, rank=17)
    (root / "more" / "out").symlink_to(root / "first")
    return root


@pytest.fixture(scope="module")
def served(files: Path) -> Iterator[Served]:
    with serving(files) as served:
        yield served
        eventually(lambda: not served.engine.has_work)
        assert served.engine.scheduler.adapters.in_use == [] and not served.adapters._users


def test_adapters_are_models_with_a_parent_in_every_door(served: Served) -> None:
    cards = {card["id"]: card for card in served.http.get("/v1/models").json()["data"]}
    assert cards["first"]["parent"] == "theirs" and cards["base"]["parent"] is None
    assert cards["first"]["root"] == str(served.directory / "first")
    assert served.http.get("/v1/models/first").json() == cards["first"]
    tags = served.http.get("/api/tags").json()["models"]
    assert {tag["name"]: tag["details"]["parent_model"] for tag in tags} == {
        "base:latest": "",
        "first:latest": "base",
    }
    assert served.text("first") != served.text("base")
    ids = [
        served.post("/completion", model=name, prompt=PROMPT, n_predict=8, temperature=0,
                    return_tokens=True).json()["tokens"]
        for name in ("first", "base")
    ]  # fmt: skip
    assert [str(one) for one in ids] == [served.text("first"), served.text("base")]
    said: dict[str, list[str]] = {}
    for name in ("first", "first:latest", "base"):
        body = {"model": name, "prompt": "hello", "raw": True, "stream": False}
        options = {"temperature": 0, "num_predict": 8}
        said["ollama"] = [
            *said.get("ollama", []),
            served.post("/api/generate", options=options, **body).json()["response"],
        ]
    assert said["ollama"][0] == said["ollama"][1] != said["ollama"][2]
    assert served.post("/tokenize", model="first", prompt="hello").status_code == 200
    assert served.complete("second").status_code == 404


def test_sessions_are_of_the_model_that_they_are_opened_with(served: Served) -> None:
    session = served.post("/v1/sessions", model="first").json()["id"]
    served.post(f"/v1/sessions/{session}/append", input=PROMPT)
    turn = {"max_tokens": 8, "temperature": 0, "return_token_ids": True}
    refused = served.post(f"/v1/sessions/{session}/generate", model="base", **turn)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "model"
    answer = served.post(f"/v1/sessions/{session}/generate", **turn).json()
    assert answer["model"] == "first"
    assert str(answer["choices"][0]["token_ids"]) == served.text("first")
    assert served.http.delete(f"/v1/sessions/{session}").status_code == 200


def test_they_are_loaded_exchanged_and_let_go_under_load(served: Served) -> None:
    stop, texts = threading.Event(), {"base": served.text("base"), "first": served.text("first")}
    wrong: list[str] = []

    def load() -> None:
        client = Served(served.server, served.engine, served.directory)
        with client.http:
            while not stop.is_set():
                wrong.extend(name for name, text in texts.items() if client.text(name) != text)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        assert served.load("m", "m0").text == "Success: LoRA adapter 'm' added successfully."
        found = [served.text("m")]
        assert served.load("m", "m1").status_code == 400, "it is there already"
        assert served.load("m", str(served.directory / "more/m1"), load_inplace=True).is_success
        found.append(served.text("m"))
        assert served.post("/v1/unload_lora_adapter", lora_name="m").is_success
        assert served.complete("m").status_code == 404
        assert served.post("/v1/unload_lora_adapter", lora_name="m").status_code == 404
        assert served.load("m", "m0").is_success
        assert served.text("m") == found[0] != found[1]
        served.post("/v1/unload_lora_adapter", lora_name="m")
    finally:
        stop.set()
        thread.join(20)
    assert not wrong
    metrics = served.http.get("/metrics").text
    assert 'quire:lora_requests_info{max_lora="1",model_name="base"' in metrics


def test_their_vectors_and_scores_are_their_own(served: Served) -> None:
    """Asked twice, so that whatever may be found is found."""
    assert served.load("m", "m0").is_success
    told = []
    for name in ("base", "first", "m") * 2:
        vector = served.post("/v1/embeddings", model=name, input=PROMPT).json()
        scored = served.complete(name, max_tokens=0, echo=True, logprobs=0).json()
        pair = served.post("/v1/score", model=name, text_1="a bird", text_2="that swims").json()
        assert vector["model"] == scored["model"] == name
        logprobs = scored["choices"][0]["logprobs"]["token_logprobs"]
        told.append((vector["data"][0]["embedding"], logprobs, pair["data"][0]["score"]))
    assert told[:3] == told[3:]
    assert all(len({str(one[part]) for one in told}) == 3 for part in range(3))
    served.post("/v1/unload_lora_adapter", lora_name="m")


def test_whoever_waits_for_one_to_be_read_may_leave_or_see_it_unloaded(served: Served) -> None:
    assert served.load("m", "m0").is_success
    text = served.text("m")
    read = served.hold("m")
    bodies = {
        "/v1/completions": {"prompt": PROMPT, "stream": True},
        "/v1/embeddings": {"input": [PROMPT, PROMPT[3:]]},
        "/v1/sessions": {},
    }
    for path, body in bodies.items():
        if path == "/v1/sessions":
            session = served.post(path, model="m").json()["id"]
            served.post(f"{path}/{session}/append", input=PROMPT)
            path += f"/{session}/generate"
        with pytest.raises(httpx.ReadTimeout):
            served.http.post(path, json={"model": "m", **body}, timeout=0.3)
        eventually(lambda: not served.engine.has_work)
    assert served.text("base") and not read.is_set()
    assert served.http.delete(f"/v1/sessions/{session}").status_code == 200

    texts: list[str] = []
    waiter = threading.Thread(target=lambda: texts.append(served.text("m")))
    waiter.start()
    eventually(lambda: served.engine.has_work)
    assert served.post("/v1/unload_lora_adapter", lora_name="m").is_success
    assert served.complete("m").status_code == 404
    read.set()
    waiter.join(20)
    assert texts == [text]
    eventually(lambda: not served.engine.has_work)
    assert all(adapter.name != "m" for adapter in served.adapters.weights)


def test_a_server_ends_while_one_is_read(files: Path) -> None:
    answers: list[httpx.Response] = []
    with serving(files, shutdown_timeout=0.2) as served:
        read = served.hold("first")
        waiter = threading.Thread(target=lambda: answers.append(served.complete("first")))
        waiter.start()
        eventually(lambda: served.engine.has_work)
        served.server.should_exit = True
        waiter.join(20)
    read.set()
    assert answers[0].status_code == 503


@pytest.mark.parametrize(
    ("name", "path", "message"),
    [
        ("x", "../first", "not below"),
        ("x", "/etc", "not below"),
        ("x", "out", "not below"),  # a link
        ("x", "m0\x00", "not below"),
        ("x", "nothing", "not a directory"),
        ("x", "wide", "rank 17, above max_lora_rank, 16"),
        ("base", "m0", "a name of the model itself"),
        ("first", "m0", "loaded already"),
        (" x", "m0", "printable characters"),
        ("", "m0", "printable characters"),
    ],
)
def test_what_may_not_be_loaded_is_refused_by_name(
    served: Served, name: str, path: str, message: str
) -> None:
    answer = served.load(name, path)
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] in ("lora_name", "lora_path")


def test_the_routes_are_not_there_unless_asked_for() -> None:
    for options in ({"allow_runtime_lora_updating": True}, {"lora_directory": "/tmp"}):
        with pytest.raises(ConfigError, match="need each other"):
            ServerConfig(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("then", ["unloaded", "exchanged", "loaded again"])
def test_a_session_keeps_the_adapter_that_it_was_opened_with(served: Served, then: str) -> None:
    """Under the old name, even while another adapter has it; and its weights go with it."""
    turn = {"max_tokens": 8, "temperature": 0, "return_token_ids": True}

    def texts(change: bool) -> list[str]:
        assert served.load("kept", "m0", load_inplace=True).status_code == 200
        session = served.post("/v1/sessions", model="kept").json()["id"]
        found = []
        for number, told in enumerate(({}, {}, {"model": "kept"})):
            given = {"input": PROMPT[number:]}
            assert served.post(f"/v1/sessions/{session}/append", **given).status_code == 200
            answer = served.post(f"/v1/sessions/{session}/generate", **turn, **told)
            assert answer.status_code == 200 and answer.json()["model"] == "kept", answer.text
            found.append(str(answer.json()["choices"][0]["token_ids"]))
            if change and number == 0 and then != "exchanged":
                assert served.post("/v1/unload_lora_adapter", lora_name="kept").status_code == 200
            if change and number == 0 and then != "unloaded":
                assert served.load("kept", "m1", load_inplace=True).status_code == 200
                served.text("kept")
            served.adapters.weights.clear()  # it is read again, from where it was
        assert served.http.delete(f"/v1/sessions/{session}").status_code == 200
        return found

    before = len(served.adapters._sources)
    assert texts(change=True) == texts(change=False)
    served.post("/v1/unload_lora_adapter", lora_name="kept")
    assert not served.adapters._sessions and len(served.adapters._sources) <= before


def test_series_of_adapters_that_are_gone_go_and_their_counts_stay(served: Served) -> None:
    def counted() -> tuple[set[str], float]:
        text = served.http.get("/metrics").text
        names, lines = set(re.findall(r'request_model="([^"]*)"', text)), text.splitlines()
        ends = [line for line in lines if "request_duration_seconds_count" in line]
        return names, sum(float(line.split()[-1]) for line in ends)

    _, before = counted()
    for number in range(4):
        assert served.load(f"passing{number}", f"m{number % 3}").status_code == 200
        served.text(f"passing{number}")
        assert f"passing{number}" in counted()[0]
        if number < 3:
            served.post("/v1/unload_lora_adapter", lora_name=f"passing{number}")
    names, after = counted()
    assert after == before + 4
    assert {name for name in names if name.startswith("passing")} == {"passing3"}
    read = served.hold("passing3")  # its last request ends when it has been unloaded
    told: list[int] = []
    thread = threading.Thread(target=lambda: told.append(served.complete("passing3").status_code))
    thread.start()
    eventually(lambda: served.adapters._users.total() == 1)
    served.post("/v1/unload_lora_adapter", lora_name="passing3")
    read.set()
    thread.join(20)
    assert told == [200]
    names, after = counted()
    assert after == before + 5
    assert not any(name.startswith("passing") for name in names)

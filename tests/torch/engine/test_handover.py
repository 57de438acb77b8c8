"""One engine computes prompts, another goes on from them: the bits of one that does both."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from quire import LLM
from quire.blocks.transfer import BlockFetcher, BlockServer
from quire.blocks.transfer.server import SentBlock
from quire.capabilities.sessions import SessionManager
from quire.core.errors import ConfigError
from quire.engine.capabilities import Capabilities
from quire.kernels.transport.connection import pieces
from quire_cluster.replica import report_of
from quire_cluster.rules import ReplicaReport
from support.handover import Serving, liar, relay, serving, two_ports
from support.lora import save_adapter
from support.small_models import make_model

SIZES: dict[str, Any] = {"dtype": "float32", "block_size": 8, "kv_cache_memory_bytes": "4MiB"}
RNG = random.Random(4)


def prompt(length: int) -> list[int]:
    return [RNG.randrange(20, 60) for _ in range(length)]


class Trio:
    """Who does both, who prefills, and who decodes."""

    def __init__(self, both: Serving, prefill: Serving, decode: Serving) -> None:
        self.both, self.prefill, self.decode = both, prefill, decode

    @property
    def fetched(self) -> int:
        """Tokens whose blocks have come over the wire and been used."""
        return self.decode.engine.scheduler.stats.prefix_fetched

    @property
    def fetcher(self) -> BlockFetcher:
        found = self.decode.engine.capabilities.transfer
        assert isinstance(found, BlockFetcher)
        return found

    def check(self, body: dict[str, Any], told: dict[str, Any] | None) -> int:
        """That the answer is right; how many of its tokens were fetched."""
        before = self.fetched
        answer = self.decode.complete(**body, kv_transfer_params=told)
        assert answer["choices"] == self.both.complete(**body)["choices"]
        return self.fetched - before


@contextmanager
def trio_of(
    family: str, at: Path, decode: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[Trio]:
    model = make_model(family, at / "model")
    targets = ("in_proj", "out_proj") if family == "mamba2" else ("gate_proj", "down_proj")
    save_adapter(at / "poet", model, seed=1, targets=targets)
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    options: dict[str, Any] = {**SIZES, "chat_template": template}
    options |= {"enable_lora": True, "lora_modules": [f"poet={at / 'poet'}"]}
    with ExitStack() as stack:
        enter = stack.enter_context
        yield Trio(
            enter(serving(model, **options)),
            enter(serving(model, **options, role="prefill", kv_transfer_config={"kv_port": 0})),
            enter(serving(model, **options, role="decode", **decode)),
        )


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    with trio_of("llama", tmp_path_factory.mktemp("handover")) as made:
        yield made


HEAD = struct.Struct("<4sIQ")
GREEDY: dict[str, Any] = {"temperature": 0, "logprobs": 2, "max_tokens": 12}
BODIES: list[tuple[str, dict[str, Any], int]] = [
    ("the last block is not full", {"prompt": prompt(45), **GREEDY}, 40),
    ("all blocks are full", {"prompt": prompt(48), **GREEDY}, 47),
    ("no block is full", {"prompt": prompt(5), **GREEDY}, 0),
    ("a salt", {"prompt": prompt(30), "cache_salt": "mine", **GREEDY}, 24),
    ("an adapter", {"prompt": prompt(30), "model": "poet", **GREEDY}, 24),
    ("samples", {"prompt": prompt(41), "n": 3, "seed": 7, "temperature": 1.0, "max_tokens": 9}, 40),
    ("beams", {"prompt": prompt(41), "use_beam_search": True, "n": 2, "max_tokens": 6}, 40),
]


def check_bits(trio: Trio, *, keeps_states: bool = False) -> None:
    for name, body, tokens in BODIES:
        told = trio.prefill.prefill(**body)
        # A state cannot be cut back: not even by the token that is computed again.
        expected = tokens // 8 * 8 if keeps_states else tokens
        assert trio.check(body, told) == expected, name
        assert trio.check(body, told) == 0, "it is in the pool by now"
    assert trio.fetcher.num_failed == 0


def test_the_bits_of_one_engine(trio: Trio) -> None:
    check_bits(trio)


def test_several_kv_groups(tmp_path: Path) -> None:
    with trio_of("gemma3", tmp_path) as trio:
        check_bits(trio)


@pytest.mark.parametrize("family", ["qwen3_5", "falcon_h1", "mamba2"])
def test_states(family: str, tmp_path: Path) -> None:
    """One for all blocks before it, the deepest that is of use; to an engine that drafts, too."""
    drafts = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}}
    patient = {"kv_transfer_config": {"timeout": 60}}
    with trio_of(family, tmp_path, decode={**drafts, **patient}) as trio:
        check_bits(trio, keeps_states=True)
        body, before = {"prompt": prompt(64), **GREEDY}, trio.fetcher.num_fetched
        told = trio.prefill.prefill(**{**body, "prompt": body["prompt"][:41]})
        assert trio.check(body, told) == 40
        told = trio.prefill.prefill(**{**body, "prompt": [*body["prompt"][:30], *prompt(30)]})
        parted = {**body, "prompt": [*body["prompt"][:34], *prompt(9)]}
        blocks, tokens = (0, 0) if family == "mamba2" else (5, 24)  # that the second has left there
        assert trio.check(parted, told) == tokens
        assert trio.fetcher.num_fetched - before == 1 + blocks + (tokens > 0), "no block twice"


def test_states_of_two_ranks(tmp_path: Path) -> None:
    """Each rank has its part of a state from the same rank of the other engine."""
    model, ranks = make_model("qwen3_5", tmp_path / "model"), {"tensor_parallel_size": 2}
    options: dict[str, Any] = {**SIZES, "threads": 1}
    port = {"kv_transfer_config": {"kv_port": two_ports()}}
    with ExitStack() as stack:
        prefill = stack.enter_context(serving(model, **options, **ranks, **port, role="prefill"))
        patient = {"kv_transfer_config": {"timeout": 60}}
        decode = stack.enter_context(serving(model, **options, **ranks, **patient, role="decode"))
        for length, tokens in (45, 40), (5, 0):
            body = {"prompt": prompt(length), **GREEDY}
            before = decode.engine.scheduler.stats.prefix_fetched
            told = prefill.prefill(**body)
            found = decode.complete(**body, kv_transfer_params=told)["choices"]
            assert decode.engine.scheduler.stats.prefix_fetched - before == tokens
            assert found == prefill.complete(**body)["choices"]


def test_what_is_cached_is_not_fetched_and_salts_keep_apart(trio: Trio) -> None:
    body = {"prompt": prompt(64), **GREEDY}
    trio.decode.complete(**{**body, "prompt": body["prompt"][:32]})
    before = trio.fetcher.num_fetched
    told = trio.prefill.prefill(**body)
    assert trio.check(body, told) == 31
    assert trio.fetcher.num_fetched - before == 4
    assert trio.check({**body, "cache_salt": "another's"}, told) == 0


class Asked:
    """See ``Prefiller``: the other server, which is asked for prompts with more than 32 tokens."""

    def __init__(self, server: Serving, *, answers: bool = True) -> None:
        self.server, self.answers = server, answers
        self.prompts: list[Any] = []

    def pays(self, new_tokens: int) -> bool:
        return new_tokens > 32

    async def prefill(self, prompt: Mapping[str, Any]) -> tuple[str, int] | None:
        self.prompts.append(prompt)
        if not self.answers:
            return None
        told = await asyncio.to_thread(
            self.server.prefill,
            prompt=prompt["prompt_token_ids"],
            cache_salt=prompt["cache_salt"] or None,
            model=prompt.get("adapter", "m"),
        )
        return told["remote_host"], told["remote_port"]


def test_prompts_are_asked_for(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, if enough of them is new, under their salt and adapter; whatever comes of it."""
    asked = Asked(trio.prefill)
    monkeypatch.setattr(trio.fetcher, "prefiller", asked)
    long = {"prompt": prompt(48), "cache_salt": "s", "model": "poet", **GREEDY}
    assert trio.check(long, None) == 47
    assert trio.check(long, None) == 0, "it is known by now"
    assert trio.check({**long, "prompt": [*long["prompt"], *prompt(30)]}, None) == 0, "mostly"
    assert trio.check({"prompt": prompt(39), **GREEDY}, None) == 0, "it is short"
    assert len(asked.prompts) == 1
    assert trio.check({"prompt": [prompt(44), prompt(45)], **GREEDY}, None) == 80
    scored = {"prompt": prompt(48), "echo": True, **GREEDY}
    assert trio.check(scored, None) == 0, "no block holds its scores"
    asked.answers = False
    assert trio.check({"prompt": prompt(48), **GREEDY}, None) == 0
    assert len(asked.prompts) == 4


def test_prompts_in_line_are_what_others_wait_for_where_only_prompts_are_computed() -> None:
    """So the number of prefill replicas follows them."""
    server, usage = BlockServer("127.0.0.1", 0), SimpleNamespace(capacity=100, free=40, cached=30)
    branch = SimpleNamespace(num_prompt_tokens=900, num_computed=400)
    engine: Any = SimpleNamespace(
        scheduler=SimpleNamespace(
            allocator=SimpleNamespace(usage=lambda: usage),
            queue=SimpleNamespace(running=[SimpleNamespace(branches=[branch])] * 2, waiting=[]),
        ),
        stats=SimpleNamespace(num_tokens=5000, busy_seconds=10.0),
        waiting_room=SimpleNamespace(predicted_wait=0.5),
        capabilities=Capabilities(SessionManager()),
    )
    assert report_of(engine, 3) == ReplicaReport(3, 100, 70, 1000, 0.5, 500.0)
    engine.capabilities = engine.capabilities._replace(transfer=server)
    assert report_of(engine, 3) == ReplicaReport(3, 100, 70, 1000, 2.0, 500.0)
    server.close()


def test_an_answer_comes_once_blocks_can_be_fetched(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, stored = trio.prefill.engine, []
    put_away = engine.put_away
    monkeypatch.setattr(engine, "put_away", lambda: stored.append(put_away()))
    trio.prefill.prefill(prompt=prompt(40), **GREEDY)
    cache = engine.scheduler.prefix_cache
    assert stored and cache is not None and not cache.has_work


def test_chats_are_handed_over(trio: Trio) -> None:
    body = {"messages": [{"role": "user", "content": "once upon a time " * 5}], "max_tokens": 5}
    asked = {**body, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    told = trio.prefill.http.post("/v1/chat/completions", json=asked).json()["kv_transfer_params"]
    before = trio.fetched
    found = trio.decode.http.post(
        "/v1/chat/completions", json={**body, "temperature": 0, "kv_transfer_params": told}
    )
    alone = trio.both.http.post("/v1/chat/completions", json={**body, "temperature": 0})
    assert found.json()["choices"] == alone.json()["choices"]
    assert trio.fetched > before


def test_wires_that_break_and_lie(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut, or with a bit flipped, anywhere: a recompute, and nothing else."""
    monkeypatch.setattr(trio.fetcher, "_seconds", 0.3)
    rng = random.Random(9)
    failed = used = 0
    for number in range(14):
        body = {"prompt": prompt(40), **GREEDY}
        told = trio.prefill.prefill(**body)
        at, flips = rng.choice([rng.randrange(400), rng.randrange(12_000)]), number % 2

        def spoil(piece: bytearray, before: int, at: int = at, flips: int = flips) -> bool:
            inside = at - before
            if not 0 <= inside < len(piece):
                return True
            if flips:
                piece[inside] ^= 1 << (at % 8)
                return True
            del piece[inside:]
            return False

        with relay(told["remote_port"], spoil) as port:
            used += trio.check(body, {**told, "remote_port": port})
        failed = trio.fetcher.num_failed
    assert failed and used, "some are spoilt, and what came before counts"


@pytest.mark.parametrize("hangs_up", [True, False])
@pytest.mark.parametrize(
    "says",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        HEAD.pack(b"QRE2", 2**31, 0),
        HEAD.pack(b"QRE2", 9, 2**60),
        HEAD.pack(b"QRE2", 2, 0) + b"[]",
        HEAD.pack(b"QRE2", 3, 0) + b"\xff{{",
        HEAD.pack(b"QRE2", 40, 0) + b"\x81",
        HEAD.pack(b"QRE2", 100_000, 0) + b"\x91" * 100_000,
        b"".join(pieces(SentBlock(True))),
    ],
)
def test_peers_that_are_none(
    trio: Trio,
    says: bytes,
    hangs_up: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if not hangs_up:
        monkeypatch.setattr(trio.fetcher, "_seconds", 0.3)
    body = {"prompt": prompt(40), **GREEDY}
    failed = trio.fetcher.num_failed
    told = {"do_remote_prefill": True, "remote_host": "127.0.0.1"}
    with liar(says, hangs_up=hangs_up) as port:
        assert trio.check(body, {**told, "remote_port": port}) == 0
    assert trio.fetcher.num_failed == failed + 1
    if hangs_up:
        assert "too slow" not in caplog.text, "nobody waits for what cannot come"
    assert trio.check(body, {**told, "remote_port": port}) == 0, "nobody is there"


def test_other_models_and_settings_are_told_apart(
    trio: Trio, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = make_model("qwen2", tmp_path / "other")
    body = {"prompt": prompt(40), **GREEDY}
    with serving(other, **SIZES, role="prefill", kv_transfer_config={"kv_port": 0}) as prefill:
        told = prefill.prefill(**body)
        assert trio.check(body, told) == 0
    assert "its blocks are others than ours: " in caplog.text
    assert "model differ" in caplog.text or "model," in caplog.text


@pytest.mark.parametrize(
    ("role", "params", "why"),
    [
        ("both", {"do_remote_decode": True}, 'needs a server of role "prefill"'),
        ("both", {"do_remote_prefill": True}, 'needs a server of role "decode"'),
        ("decode", {"do_remote_decode": True}, 'needs a server of role "prefill"'),
        ("prefill", {"do_remote_prefill": True}, 'needs a server of role "decode"'),
        ("decode", {"do_remote_prefill": True}, "needs remote_host"),
        ("decode", {"do_remote_prefill": True, "remote_host": "a"}, "needs remote_port"),
        ("decode", {"do_remote_prefill": 1}, "must be true or false"),
    ],
)
def test_what_cannot_be_handed_over_is_refused(
    trio: Trio, role: str, params: dict[str, Any], why: str
) -> None:
    server: Serving = getattr(trio, role)
    body = {"prompt": [5], "kv_transfer_params": params}
    answer = server.http.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert why in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "kv_transfer_params"


def test_a_client_cannot_make_up_who_blocks_are_taken_from(trio: Trio, tmp_path: Path) -> None:
    """Not another machine without a key, nor anybody with one who does not have it."""
    for host in ("10.0.0.7", "evil.example", "evil.localhost", "127.0.0.1.evil.example"):
        told = {"do_remote_prefill": True, "remote_host": host, "remote_port": 14579}
        body = {"prompt": [5], "kv_transfer_params": told}
        answer = trio.decode.http.post("/v1/completions", json=body)
        assert answer.status_code == 400 and "must be this machine" in answer.text
    (tmp_path / "key").write_text("k" * 16)
    key, model = {"key_file": str(tmp_path / "key")}, make_model("llama", tmp_path / "model")
    with ExitStack() as stack:
        enter = stack.enter_context
        prefill = enter(
            serving(model, **SIZES, role="prefill", kv_transfer_config={"kv_port": 0} | key)
        )
        decode = enter(serving(model, **SIZES, role="decode", kv_transfer_config=key))
        body = {"prompt": prompt(40), **GREEDY}
        told = prefill.prefill(**body)
        for change in (
            {"remote_port": told["remote_port"] - 1},
            {"remote_host": "localhost"},
            {"remote_engine_id": f"127.0.0.1:{told['remote_port']}"},
            {"remote_engine_id": None},
        ):
            asked = {**body, "kv_transfer_params": {**told, **change}}
            answer = decode.http.post("/v1/completions", json=asked)
            assert answer.status_code == 400
            assert "an engine with the same key has answered" in answer.text
        found = decode.complete(**body, kv_transfer_params=told)["choices"]
        assert decode.engine.scheduler.stats.prefix_fetched == 39
        assert found == prefill.complete(**body)["choices"]


def test_streams_and_sessions_are_not_handed_over(trio: Trio) -> None:
    ask = {"prompt": [5], "stream": True, "kv_transfer_params": {"do_remote_decode": True}}
    answer = trio.prefill.http.post("/v1/completions", json=ask)
    assert answer.status_code == 400 and "cannot be streamed" in answer.text
    session = trio.decode.http.post("/v1/sessions", json={}).json()["id"]
    ask = {"kv_transfer_params": {"do_remote_prefill": True}}
    answer = trio.decode.http.post(f"/v1/sessions/{session}/generate", json=ask)
    assert answer.status_code == 400 and "kv_transfer_params" in answer.text
    trio.decode.http.delete(f"/v1/sessions/{session}")


def test_what_no_role_can_do_is_refused() -> None:
    server = BlockServer("127.0.0.1", 0)
    port = {"kv_port": server.port}
    for options, why in (
        ({"role": "half"}, "role must be one of both, prefill, decode"),
        ({"kv_transfer_config": {}, "role": "prefill", "kv_store": "/tmp"}, "kv_store is for"),
        ({"kv_transfer_config": {"kv_role": "kv_both"}}, "role .prefill or decode. says what kv_r"),
        ({"kv_transfer_config": {"kv_port": 1}}, 'does nothing with role "both"'),
        ({"role": "decode", "enable_prefix_caching": False}, "needs enable_prefix_caching"),
        ({"role": "decode", "device": "cuda"}, "on CPUs only"),
        (
            {"role": "prefill", "tensor_parallel_size": 2, "kv_transfer_config": {"kv_port": 0}},
            "kv_port must be from 1 to 65534, got 0: each of 2 ranks listens at a port",
        ),
        ({"role": "decode", "tensor_parallel_size": 2, "nnodes": 2}, "ranks of one machine only"),
        (
            {"role": "decode", "kv_transfer_config": {"key_file": "/none"}},
            "key_file cannot be read",
        ),
        ({"role": "decode", "kv_transfer_config": {"timeout": 0}}, "timeout must be from 0.01"),
        ({"role": "decode", "kv_transfer_config": {"kv_prt": 0}}, "did you mean kv_port"),
        ({"role": "prefill", "kv_transfer_config": {"kv_ip": "0.0.0.0"}}, "kv_ip must be an add"),
        ({"role": "prefill", "kv_transfer_config": port}, "cannot be listened on: .*in use"),
        ({"role": "decode", "kv_transfer_config": {"kv_buffer_size": 99}}, "is less than a block"),
    ):
        with pytest.raises(ConfigError, match=why):
            LLM(**options)
    server.close()

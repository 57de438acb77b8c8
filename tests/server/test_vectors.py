"""Vectors and scores over HTTP, by the names of OpenAI's, Cohere's, Ollama's and llama.cpp's APIs.

The model is a fake whose vectors depend on every key that their prompts have put into memory.
"""

from __future__ import annotations

import base64
import json
import math
import socket
import struct
from typing import Any

import pytest

from quire.http.doors.vectors import (
    EmbeddingList,
    EmbeddingRequest,
    LlamaCppEmbedding,
    OllamaEmbedding,
    OllamaEmbeddings,
    Reranked,
    ScoreList,
)
from support.described import as_described
from support.fake_model import WIDTH
from support.live_server import MAX_MODEL_LEN, MODEL, LiveServer, eventually, live_server

TEXTS = ["a bird that swims", "a stone"]


def embed(server: LiveServer, **body: Any) -> Any:
    return server.http.post("/v1/embeddings", json={"model": MODEL, **body})


def vectors(server: LiveServer, **body: Any) -> list[list[float]]:
    return [one["embedding"] for one in embed(server, **body).json()["data"]]


def test_openai_s_client_gets_the_numbers_that_were_sent(shared: LiveServer) -> None:
    """It asks for base64 unless it is told otherwise."""
    answer = shared.openai.embeddings.create(model=MODEL, input=TEXTS)
    expected = vectors(shared, input=TEXTS)
    assert [one.embedding for one in answer.data] == expected
    assert len(expected[0]) == WIDTH and expected[0] != expected[1]
    counts = [len(shared.tokenizer.encode(text)) for text in TEXTS]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(counts)


def test_a_text_has_its_vector_in_any_form_and_company(shared: LiveServer) -> None:
    both = vectors(shared, input=TEXTS)
    assert vectors(shared, input=TEXTS[1]) == both[1:]
    ids = [shared.tokenizer.encode(text) for text in TEXTS]
    assert vectors(shared, input=ids) == both
    assert vectors(shared, input=ids[0]) == both[:1]
    packed = embed(shared, input=TEXTS, encoding_format="base64").json()["data"]
    raw = [base64.b64decode(one["embedding"]) for one in packed]
    assert [list(struct.unpack(f"<{WIDTH}f", one)) for one in raw] == both


def test_long_texts_are_cut_on_either_side_where_that_is_asked(shared: LiveServer) -> None:
    """Their beginnings are kept, as vLLM and sentence-transformers do, unless it is left."""
    ids = shared.tokenizer.encode(" bird" * 299 + " stone")[:300]
    assert embed(shared, input=ids).status_code == 400
    whole = vectors(shared, input=ids, truncate_prompt_tokens=-1)
    assert whole == vectors(shared, input=ids[:MAX_MODEL_LEN])
    for side, kept in ((None, ids[:3]), ("right", ids[:3]), ("left", ids[-3:])):
        cut = vectors(shared, input=ids, truncate_prompt_tokens=3, truncation_side=side)
        assert cut == vectors(shared, input=kept)


def cosines(server: LiveServer, query: str, texts: list[str], **cut: Any) -> list[float]:
    """By the server's own vectors, which have length 1."""
    first, *others = vectors(server, input=[query, *texts], normalize=True, **cut)
    return [math.fsum(a * b for a, b in zip(first, one, strict=True)) for one in others]


LONG = [" ".join(f"{word}{i}" for i in range(90)) for word in ("bird", "stone", "sea")]


@pytest.mark.parametrize("cut", [
    {"truncate_prompt_tokens": 7},
    {"truncate_prompt_tokens": -1},
    {"truncate_prompt_tokens": 5, "truncation_side": "left"},
    {"truncate_prompt_tokens": -1, "truncation_side": "left"},
    {"truncate_prompt_tokens": 5, "truncation_side": "right"},
])  # fmt: skip
def test_a_score_is_the_cosine_of_the_server_s_own_vectors(
    shared: LiveServer, cut: dict[str, Any]
) -> None:
    """However texts are cut: every door of vectors and scores cuts them alike."""
    query, *texts = LONG
    expected = cosines(shared, query, texts, **cut)
    for path in ("/v1/score", "/score"):
        scored = shared.http.post(path, json={"text_1": query, "text_2": texts, **cut}).json()
        assert [one["score"] for one in scored["data"]] == pytest.approx(expected)
    for path in ("/v1/rerank", "/v2/rerank", "/rerank", "/v1/reranking", "/reranking"):
        ranked = shared.http.post(path, json={"query": query, "documents": texts, **cut}).json()
        scores = {one["index"]: one["relevance_score"] for one in ranked["results"]}
        assert [scores[i] for i in range(len(texts))] == pytest.approx(expected)


def test_ollama_cuts_texts_to_the_model_s_length_as_all_do(shared: LiveServer) -> None:
    theirs = shared.http.post("/api/embed", json={"model": MODEL, "input": LONG}).json()
    assert theirs["embeddings"] == vectors(shared, input=LONG, truncate_prompt_tokens=-1)
    for path, body in (
        ("/api/embed", {"model": MODEL, "input": LONG, "truncate": False}),
        ("/api/embeddings", {"model": MODEL, "prompt": LONG[0]}),
        ("/embedding", {"content": LONG[0]}),
        ("/v1/embeddings", {"input": LONG[0]}),
    ):
        assert shared.http.post(path, json=body).status_code == 400, path


def test_vectors_are_as_long_and_as_special_as_any_door_asks(shared: LiveServer) -> None:
    body = {"model": MODEL, "input": TEXTS, "dimensions": 2}
    theirs = shared.http.post("/api/embed", json=body).json()["embeddings"]
    assert theirs == vectors(shared, input=TEXTS, dimensions=2, normalize=True)
    asked = EmbeddingRequest(input="x", add_special_tokens=True)
    assert asked.form(MAX_MODEL_LEN) == EmbeddingRequest(input="x").form(MAX_MODEL_LEN)


def test_pairs_are_scored_and_documents_ranked(shared: LiveServer) -> None:
    query, others = TEXTS[0], [TEXTS[1], TEXTS[0], "a penguin"]
    scored = shared.http.post("/score", json={"text_1": query, "text_2": others})
    scores = [one.score for one in as_described(ScoreList, scored.content).data]
    ranked = shared.http.post("/v1/rerank", json={"query": query, "documents": others, "top_n": 2})
    results = as_described(Reranked, ranked.content).results
    best = sorted(range(3), key=lambda i: -scores[i])[:2]
    assert [one.index for one in results] == best
    assert [one.relevance_score for one in results] == [scores[i] for i in best]
    assert results[0].document is not None and results[0].document.text == others[best[0]]
    body = {"query": query, "documents": [{"text": text} for text in others]}
    short = shared.http.post("/v2/rerank", json={**body, "return_documents": False}).json()
    assert [one["index"] for one in short["results"]][:2] == best
    assert "document" not in short["results"][0]


def test_other_doors(shared: LiveServer) -> None:
    expected = vectors(shared, input=TEXTS)
    post = shared.http.post
    ollama = post("/api/embed", json={"model": f"{MODEL}:latest", "input": TEXTS})
    assert as_described(OllamaEmbeddings, ollama.content).embeddings == expected
    older = post("/api/embeddings", json={"model": MODEL, "prompt": TEXTS[0]})
    assert as_described(OllamaEmbedding, older.content).embedding == expected[0]
    assert post("/api/embed", json={"model": MODEL}).json()["embeddings"] == []
    theirs = as_described(
        list[LlamaCppEmbedding], post("/embedding", json={"content": TEXTS}).content
    )
    assert [one.embedding for one in theirs] == [[one] for one in expected]
    as_described(EmbeddingList, embed(shared, input=TEXTS).content)


def test_texts_and_tokens_as_llama_cpp_s_clients_mix_them(shared: LiveServer) -> None:
    hello = shared.tokenizer.encode("hello", add_special_tokens=False)
    plain, mixed = vectors(shared, input=["hello", [12, *hello, 56]])
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    for one in ({"prompt_string": "hello"}, {"content": parts}):
        assert vectors(shared, input=one) == [plain]
    assert vectors(shared, input=[12, "hello", 56]) == [mixed]
    assert vectors(shared, input=["hello", [12, "hello", 56], {"prompt_string": "hello"}]) == [
        plain, mixed, plain
    ]  # fmt: skip
    answer = shared.http.post("/embedding", json={"content": [12, "hello", 56]}).json()
    assert answer[0]["embedding"] == [pytest.approx(mixed)]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("embeddings", {"input": ""}, "input"),
        ("embeddings", {"input": []}, "input"),
        ("embeddings", {"input": ["x", ""]}, "input"),
        ("embeddings", {"input": [[1], {"x": 1}]}, "input"),
        ("embeddings", {"input": [1, ["x"]]}, "input"),
        ("embeddings", {"input": {"content": "x"}}, "input"),
        ("embeddings", {"input": {"content": [{"type": "unknown"}]}}, "input"),
        ("embeddings", {"input": {"content": [], "prompt_string": "x"}}, "input"),
        ("embeddings", {"input": [10**9]}, "input"),
        ("embeddings", {"input": ["x"] * 2049}, "input"),
        ("embeddings", {"input": "x", "dimensions": 0}, "dimensions"),
        ("embeddings", {"input": "x", "dimensions": 3}, "dimensions"),
        ("embeddings", {"input": "x", "dimensions": WIDTH + 1}, "dimensions"),
        ("embeddings", {"input": "x", "encoding_format": "int8"}, "encoding_format"),
        ("embeddings", {"input": "x", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        *(
            (path, {**body, "truncate_prompt_tokens": wrong}, "truncate_prompt_tokens")
            for path, body in (
                ("embeddings", {"input": "x"}),
                ("score", {"text_1": "a", "text_2": "b"}),
                ("rerank", {"query": "a", "documents": ["b"]}),
                ("completions", {"prompt": "x"}),
                ("chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
            )
            for wrong in (-2, 0, MAX_MODEL_LEN + 1)
        ),
        ("score", {"text_1": "a", "text_2": "b", "truncation_side": "end"}, "truncation_side"),
        ("embeddings", {"input": "x", "max_tokens": 1}, "max_tokens"),
        ("score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ("score", {"text_1": "a"}, "text_2"),
        ("rerank", {"query": "", "documents": ["x"]}, "documents"),
        ("rerank", {"query": "x", "documents": []}, "documents"),
        ("rerank", {"query": "x", "documents": [{"image": "x"}]}, "documents[0]"),
        ("classify", {"input": "x"}, "model"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    path: str, body: dict[str, Any], field: str, shared: LiveServer
) -> None:
    response = shared.http.post(f"/v1/{path}", json={"model": MODEL, **body})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, field), error


def test_who_leaves_takes_nothing_along(server: LiveServer) -> None:
    server.executor.hold()
    body = json.dumps({"model": MODEL, "input": TEXTS}).encode()
    head = b"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(
        body
    )
    with socket.create_connection(("127.0.0.1", server.server.port)) as client:
        client.sendall(b"POST /v1/embeddings HTTP/1.1\r\n" + head + body)
        eventually(lambda: server.engine.has_work)
    eventually(lambda: not server.server._drain.running)  # it is known that nobody waits
    server.executor.release()
    eventually(lambda: server.num_aborted == 2)
    eventually(server.is_idle)


def test_a_failed_step_is_told_and_others_live_on() -> None:
    with live_server() as server:
        expected = vectors(server, input=TEXTS)
        fail = server.executor.fail

        def planted(step: Any) -> None:
            server.executor.fail = fail
            raise RuntimeError("planted")

        server.executor.fail = planted
        assert embed(server, input=TEXTS).status_code == 500
        assert vectors(server, input=TEXTS) == expected

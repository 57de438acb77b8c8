"""vLLM on CPUs: all requests at once, in this process."""

from __future__ import annotations

import time

from vllm import LLM, SamplingParams

from benchmarks.peers.runners.job import WARM_UP, Request, answer, read_job

_SHORTEST_MODEL = 2048  # tokens that it is set up for at least
_LEAST_SEQS = 64


def _prompt(request: Request) -> dict[str, list[int]]:
    return {"prompt_token_ids": request.prompt}


def _params(request: Request) -> SamplingParams:
    return SamplingParams(
        temperature=0,
        max_tokens=request.max_tokens,
        min_tokens=request.max_tokens,
        ignore_eos=True,
        detokenize=False,
    )


def main() -> None:
    job = read_job()
    llm = LLM(
        job.model,
        dtype="bfloat16",
        enable_prefix_caching=job.prefix_caching,
        max_num_seqs=max(_LEAST_SEQS, len(job.requests)),
        max_model_len=max(_SHORTEST_MODEL, job.longest),
        disable_log_stats=True,
    )
    llm.generate([_prompt(WARM_UP)], _params(WARM_UP), use_tqdm=False)
    prompts, params = map(_prompt, job.requests), map(_params, job.requests)
    started = time.perf_counter()
    results = llm.generate([*prompts], [*params], use_tqdm=False)
    seconds = time.perf_counter() - started
    answer(job, [result.outputs[0].token_ids for result in results], seconds)


if __name__ == "__main__":
    main()

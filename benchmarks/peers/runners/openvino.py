"""OpenVINO GenAI's continuous batching on CPUs: all requests at once, in this process."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai

from benchmarks.peers.runners.job import WARM_UP, Job, Request, answer, read_job

_OPTION = "rt_info/runtime_options/KV_CACHE_PRECISION"


def _pipeline(job: Job) -> Any:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = job.cache_gib
    scheduler.enable_prefix_caching = job.prefix_caching
    threads = {"INFERENCE_NUM_THREADS": job.threads}
    return openvino_genai.ContinuousBatchingPipeline(job.model, scheduler, "CPU", threads)


def _add(pipeline: Any, number: int, request: Request) -> Any:
    params = openvino_genai.GenerationConfig()
    params.max_new_tokens, params.ignore_eos, params.do_sample = request.max_tokens, True, False
    prompt = openvino.Tensor(np.array([request.prompt], dtype=np.int64))
    return pipeline.add_request(number, prompt, params)


def _run(pipeline: Any, requests: list[Request]) -> list[list[int]]:
    handles = [_add(pipeline, number, request) for number, request in enumerate(requests)]
    while pipeline.has_non_finished_requests():
        pipeline.step()
    finished = openvino_genai.GenerationStatus.FINISHED
    return [
        list(handle.read_all()[0].generated_ids) if handle.get_status() == finished else []
        for handle in handles
    ]


def _types(model: str) -> dict[str, str]:
    """What the plugin computes in here, and what its cache holds, unless the model says so."""
    core = openvino.Core()
    computing = core.get_property("CPU", "INFERENCE_PRECISION_HINT").to_string()
    root = ElementTree.parse(Path(model) / "openvino_model.xml").getroot()
    told = root.find(f"./{_OPTION}")
    kept = told.get("value") if told is not None else None
    cache = kept or core.get_property("CPU", "KV_CACHE_PRECISION").to_string()
    # A cache of 16 bits is kept in the type that is computed in.
    return {"computing": computing, "cache": computing if cache == "f16" else cache}


def main() -> None:
    job = read_job()
    types = _types(job.model)
    pipeline = _pipeline(job)
    _run(pipeline, [WARM_UP])
    started = time.perf_counter()
    outputs = _run(pipeline, job.requests)
    seconds = time.perf_counter() - started
    answer(job, outputs, seconds, facts=types)


if __name__ == "__main__":
    main()

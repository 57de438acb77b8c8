"""Runs the experiments, several at a time, and writes their page."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tqdm import tqdm

from quire.errors import ConfigError
from quire.reports.style import require_matplotlib
from quire.reproduction.articles import worked_examples
from quire.reproduction.block_figures import block_sizes, swap_or_recompute
from quire.reproduction.experiment import FULL, QUICK, Experiment, Scale
from quire.reproduction.memory_figures import batch_sizes, memory_saved, memory_waste, pool_sizes
from quire.reproduction.page import write_page
from quire.reproduction.rate_figures import (
    basic_sampling_alpaca,
    basic_sampling_sharegpt,
    chatbot,
    parallel_and_beam,
    shared_prefix,
)

EXPERIMENTS: Mapping[str, Callable[[Scale], Experiment]] = {
    "articles": worked_examples,
    "table-1": pool_sizes,
    "figure-2": memory_waste,
    "figure-12-sharegpt": basic_sampling_sharegpt,
    "figure-12-alpaca": basic_sampling_alpaca,
    "figure-13": batch_sizes,
    "figure-14": parallel_and_beam,
    "figure-15": memory_saved,
    "figure-16": shared_prefix,
    "figure-17": chatbot,
    "figure-18b": block_sizes,
    "figure-19": swap_or_recompute,
}
"""Every experiment by its key, in the order of the page."""

_SLOWEST_FIRST = ("figure-12-alpaca", "figure-14", "figure-12-sharegpt")


def reproduce(
    directory: Path,
    *,
    only: Sequence[str] = (),
    quick: bool = False,
    jobs: int = 1,
    seed: int = 0,
    progress: bool = False,
) -> Path:
    """Run experiments and write their page into ``directory``; the path of the page.

    only: keys of EXPERIMENTS; empty: all. quick: a smoke run in seconds, its figures rough.
    jobs: processes to run them in. The figures do not depend on it.

    Raises:
        ConfigError: an unknown key, or what the page says of its directory.
    """
    unknown = [key for key in only if key not in EXPERIMENTS]
    if unknown:
        raise ConfigError(f"unknown experiment {unknown[0]!r}; known: {', '.join(EXPERIMENTS)}")
    require_matplotlib()
    if jobs < 1:
        raise ConfigError(f"jobs must be at least 1, got {jobs}")
    scale = Scale(**{**vars(QUICK if quick else FULL), "seed": seed})
    keys = [key for key in EXPERIMENTS if not only or key in only]
    line = sorted(keys, key=lambda key: key not in _SLOWEST_FIRST)
    done: dict[str, Experiment] = {}
    with tqdm(total=len(keys), desc="experiments", disable=not progress) as bar:
        for experiment_key, experiment in _run(line, scale, min(jobs, len(keys))):
            done[experiment_key] = experiment
            bar.set_postfix_str(experiment_key)
            bar.update()
    how = (
        f"Seed {seed}. A quick run: so little was simulated that figures are rough."
        if quick
        else f"Seed {seed}. The same seed gives the same figures."
    )
    return write_page(directory, [done[key] for key in keys], how)


def _run(keys: Sequence[str], scale: Scale, jobs: int) -> Iterable[tuple[str, Experiment]]:
    if jobs == 1:
        for key in keys:
            yield key, EXPERIMENTS[key](scale)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = {key: pool.submit(EXPERIMENTS[key], scale) for key in keys}
        for key, future in futures.items():
            yield key, future.result()

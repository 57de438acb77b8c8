"""Runs the experiments, several at a time, and writes their page."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from quire.core.errors import ConfigError
from quire_lab.reports.style import require_matplotlib
from quire_lab.reproduction.articles import worked_examples
from quire_lab.reproduction.block_figures import block_sizes, swap_or_recompute
from quire_lab.reproduction.experiment import FULL, QUICK, Experiment, Scale
from quire_lab.reproduction.memory_figures import (
    batch_sizes,
    memory_saved,
    memory_waste,
    pool_sizes,
)
from quire_lab.reproduction.page import Drawn, write_page
from quire_lab.reproduction.rate_figures import (
    basic_sampling_alpaca,
    basic_sampling_sharegpt,
    chatbot,
    parallel_and_beam,
    shared_prefix,
)
from quire_lab.reproduction.technique_figures import techniques
from quire_lab.reproduction.walk_through import walk_through

EXPERIMENTS: Mapping[str, Callable[[Scale], Experiment]] = {
    "walk-through": walk_through,
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
    "techniques": techniques,
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
    progress: Callable[[str], None] = lambda _: None,
) -> Path:
    """Run experiments and write their page into ``directory``; the path of the page.

    only: keys of EXPERIMENTS; empty: all. quick: a short run in seconds, with rough figures.
    jobs: processes to use. The figures do not depend on it.
    progress: called for each that has ended. The page is written anew then, with what there is.

    Raises:
        ConfigError: an unknown key, or the directory cannot be written.
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
    done: dict[str, Drawn] = {}
    start = time.monotonic()
    for ended, experiment in _run(line, scale, min(jobs, len(keys))):
        done[ended] = Drawn.of(experiment)
        page = write_page(
            directory,
            [done[key] for key in keys if key in done],
            _how(quick, seed, [key for key in keys if key not in done]),
        )
        progress(
            f"{len(done)} of {len(keys)}: {ended}, {agreement(experiment)}; "
            f"{time.monotonic() - start:.0f} s"
        )
    return page


def agreement(experiment: Experiment) -> str:
    """How many figures are as published, in words."""
    compared = [one.agrees for one in experiment.findings if one.agrees is not None]
    if not compared:
        return "no figure is published"
    return f"{sum(compared)} of {len(compared)} figures as published"


def _how(quick: bool, seed: int, missing: Sequence[str]) -> str:
    how = f"Seed {seed}. The same seed gives the same figures."
    if quick:
        how = (
            f"Seed {seed}. A quick run: so little was simulated that figures are rough, and "
            f"sustained rates are sought no further than {QUICK.furthest:g} times where the search "
            "begins."
        )
    return f"{how} Still to come: {', '.join(missing)}." if missing else how


def _run(keys: Sequence[str], scale: Scale, jobs: int) -> Iterable[tuple[str, Experiment]]:
    if jobs == 1:
        for key in keys:
            yield key, EXPERIMENTS[key](scale)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = {key: pool.submit(EXPERIMENTS[key], scale) for key in keys}
        by_future = {future: key for key, future in futures.items()}
        for future in as_completed(by_future):
            yield by_future[future], future.result()

"""Workloads by name, each to be changed where something else is asked for."""

from __future__ import annotations

from collections.abc import Mapping

from quire_lab.workload.synthetic import DATASETS, Lengths, Library, Synthetic

PRESETS: Mapping[str, Synthetic] = {
    **{name: Synthetic(1, inputs, outputs) for name, (inputs, outputs) in DATASETS.items()},
    # Figures of ours, as is customary: five pieces of 400 tokens of a few thousand are looked up
    # for a question, the best known ones far more often than others, and answered in short.
    "rag": Synthetic(
        1,
        Lengths("lognormal", 40, 0.6),
        Lengths("lognormal", 180, 0.7),
        shared_prefix=250,
        library=Library(2000, Lengths("normal", 400, 60), 5),
    ),
    # Likewise: four agents take up each task, with one long instruction that names their tools;
    # each calls eight of these in turn, reads what they give, and says little.
    "agents": Synthetic(
        1,
        Lengths("lognormal", 300, 0.8),
        Lengths("lognormal", 90, 0.8),
        shared_prefix=1500,
        agents=4,
        turns=8,
        think_seconds=3.0,
    ),
}

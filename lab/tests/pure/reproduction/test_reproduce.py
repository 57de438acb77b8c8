"""The page of experiments, run at the smallest scale and read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quire.core.errors import ConfigError
from quire.tools.cli import main
from quire_lab.reproduction import EXPERIMENTS, reproduce
from quire_lab.reproduction.experiment import QUICK
from quire_lab.reproduction.run import _SLOWEST_FIRST
from support.page_reader import PageReader

pytest.importorskip("matplotlib")

pytestmark = pytest.mark.slow

KEYS = ["walk-through", "articles", "figure-2", "figure-17"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("reproduction")
    reproduce(directory, only=KEYS, quick=True)
    return directory


def test_the_page_has_every_figure_beside_the_published_one(written: Path) -> None:
    page = PageReader(written / "reproduction.html")
    values = json.loads((written / "figures.json").read_text(encoding="utf-8"))
    assert page.external == []
    assert [one["key"] for one in values["experiments"]] == KEYS
    tables = [table[1:] for table in page.tables if table[0][0] == "figure"]
    for experiment, rows in zip(values["experiments"], tables, strict=True):
        assert len({row[0] for row in rows}) == len(rows)  # no two of one name
        for finding, row in zip(experiment["findings"], rows, strict=True):
            assert row[0] == finding["what"] and row[3] == finding["unit"]
            assert float(row[2].replace(",", "")) == pytest.approx(finding["ours"], rel=6e-3)
            published = [float(one) for one in row[1].replace(",", "").split(" to ") if one != "–"]
            assert published == pytest.approx(finding["published"])
            verdicts = [word in row[4] for word in ("agrees", "differs", "none")]
            assert verdicts == [finding["agrees"] is one for one in (True, False, None)]


def test_the_page_has_tables_row_by_row(written: Path) -> None:
    page = PageReader(written / "reproduction.html")
    values = json.loads((written / "figures.json").read_text(encoding="utf-8"))
    for table in values["experiments"][0]["tables"]:
        assert [table["head"], *table["rows"]] in page.tables


def test_the_page_says_that_it_was_quick_and_that_lengths_are_drawn(written: Path) -> None:
    text = PageReader(written / "reproduction.html").text
    assert "figures are rough" in text and "ShareGPT and Alpaca are not part of Quire" in text


def test_figure_2_has_the_papers_order(written: Path) -> None:
    values = json.loads((written / "figures.json").read_text(encoding="utf-8"))
    used = [one["ours"] for one in values["experiments"][2]["findings"][:4]]
    assert used == sorted(used) and used[0] < 30 and used[3] > 95


def test_processes_change_nothing(written: Path, tmp_path: Path) -> None:
    flags = ["--quick", "--jobs", "2", "--out", str(tmp_path)]
    assert main(["reproduce", *flags, "--only", *KEYS]) == 0
    for file in sorted(written.iterdir()):
        assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name


def test_each_is_written_as_it_ends(tmp_path: Path) -> None:
    told: list[tuple[str, list[str], bool]] = []

    def look(line: str) -> None:
        values = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
        whole = "Still to come" not in PageReader(tmp_path / "reproduction.html").text
        told.append((line, [one["key"] for one in values["experiments"]], whole))

    reproduce(tmp_path, only=["articles", "table-1"], quick=True, progress=look)
    assert [(keys, whole) for _, keys, whole in told] == [
        (["articles"], False), (["articles", "table-1"], True),
    ]  # fmt: skip
    assert told[0][0].startswith("1 of 2: articles, ") and "of 31 figures as pub" in told[0][0]


@pytest.mark.parametrize("key", ["table-1", "figure-19", "figure-12-sharegpt"])
def test_an_experiment_gives_figures(key: str) -> None:
    experiment = EXPERIMENTS[key](QUICK)
    assert experiment.key == key and experiment.findings
    assert all(one.ours > 0 for one in experiment.findings)


def test_what_runs_first_is_known() -> None:
    assert set(_SLOWEST_FIRST) <= set(EXPERIMENTS)


def test_an_unknown_experiment_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown experiment 'figure-99'; known: walk-through"):
        reproduce(tmp_path / "new", only=["figure-99"])
    assert not (tmp_path / "new").exists()

"""``quire pull`` against a hub on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from quire.core.errors import ModelError
from quire.models.hub import cached_models, gguf_file
from quire.tools.cli import main
from support.hub import COMMIT, DEMO, WEIGHTS, hub, repository

Pull = Callable[[str, str], tuple[int, str, str]]


@pytest.fixture
def pull(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Pull:
    """``quire pull`` of a name from a hub at an address: its status, output and messages."""

    def run(name: str, address: str) -> tuple[int, str, str]:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        status = main(["pull", name, "--download-dir", str(tmp_path)])
        return (status, *capsys.readouterr())

    return run


def test_what_is_pulled_is_what_is_needed_and_only_once(pull: Pull, tmp_path: Path) -> None:
    with hub(good=repository()) as (address, fetched):
        status, output, messages = pull("owner/good", address)
        assert status == 0, messages
        assert messages.startswith("owner/good: 2 files, 7.5") and "to download" in messages
        assert "HTTP" not in messages
        directory = Path(output.strip())
        assert sorted(file.name for file in directory.iterdir()) == ["config.json", WEIGHTS]
        assert sorted(fetched) == ["config.json", WEIGHTS]
        status, _, messages = pull("owner/good", address)
        assert "all downloaded" in messages and len(fetched) == 2
    assert pull("owner/good", address)[:2] == (0, output)  # the hub is gone
    (cached,) = cached_models(str(tmp_path))
    assert cached == ("owner/good", COMMIT, directory)


SIZES = {
    "m-Q4_K_M.gguf": b"four",
    "m-Q8_0.gguf": b"eight",
    "BF16/m-BF16-00001-of-00002.gguf": b"first",
    "BF16/m-BF16-00002-of-00002.gguf": b"second",
}


def test_of_many_gguf_files_one_is_fetched_and_found_without_the_hub(
    pull: Pull, tmp_path: Path
) -> None:
    found = {}
    with hub(sizes={**repository(), **SIZES}) as (address, fetched):
        for wanted, files in (
            ("Q4_K_M", ["m-Q4_K_M.gguf"]),
            ("m-Q4_K_M.gguf", []),  # it is here
            ("bf16", [f"m-BF16-0000{part}-of-00002.gguf" for part in (1, 2)]),
        ):
            before = len(fetched)
            status, output, messages = pull(f"owner/sizes:{wanted}", address)
            assert status == 0, messages
            assert sorted(fetched[before:]) == files
            found[wanted] = Path(output.strip())
        status, _, messages = pull("owner/sizes:Q5_K_M", address)
        assert status == 1 and "has no such file; GGUF files there: BF16/m-BF16" in messages
    for wanted, path in found.items():  # the hub is gone
        assert path.read_bytes() == (b"first" if wanted == "bf16" else b"four")
        assert gguf_file("owner/sizes", wanted, download_dir=str(tmp_path)) == path
    with pytest.raises(ModelError, match=r"GGUF files there: .*, m-Q4_K_M\.gguf$"):
        gguf_file("owner/sizes", "Q8_0", download_dir=str(tmp_path))
    with pytest.raises(ModelError, match="Hugging Face cannot be reached"):
        gguf_file("owner/other", "Q8_0", download_dir=str(tmp_path))


def test_what_cannot_be_pulled_is_told_before_anything_is_fetched(pull: Pull) -> None:
    pickled = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    with hub(pickled=pickled) as (address, fetched):
        for name, message in (
            ("owner/pickled", "no safetensors files"),
            ("owner/unknown", "no such repository on Hugging Face"),
            ("owner/unknown:Q8_0", "no such repository on Hugging Face"),
            ("what is this", "nor a valid Hugging Face name"),
            (str(DEMO), "is a directory, which can be served as it is"),
        ):
            status, output, messages = pull(name, address)
            assert (status, output) == (1, "") and message in messages
        assert not fetched
    assert "Hugging Face cannot be reached" in pull("owner/other", address)[2]


def test_a_disk_that_is_too_small_is_told_first(
    pull: Pull, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1 << 20))
    sizes = {"m-Q8_0.gguf": bytes(2 << 20)}
    with hub(good=repository(), sizes=sizes) as (address, fetched):
        for name in ("owner/good", "owner/sizes:Q8_0"):
            status, _, messages = pull(name, address)
            assert status == 1 and "only 1 MiB are free" in messages
        assert not fetched


def test_a_plan_fetches_no_more_than_a_config(
    pull: Pull, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with hub(good=repository()) as (address, fetched):
        pull("owner/unknown", address)  # from now on this is the hub
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "own"))
        flags = ["--dataset", "alpaca", "--requests", "3"]
        for _ in range(2):
            assert main(["simulate", "owner/good", *flags]) == 0, capsys.readouterr().err
            assert capsys.readouterr().out.startswith("good on a100-80")
        assert fetched == ["config.json"]
        assert main(["simulate", "owner/unknown", *flags]) == 1
        assert "no such repository on Hugging Face" in capsys.readouterr().err

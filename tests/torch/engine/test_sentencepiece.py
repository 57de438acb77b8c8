"""A model whose only tokenizer is SentencePiece's: what is lacking to read it is named."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from quire.core.errors import ModelError
from quire.text import tokenizer
from quire.text.tokenizer import load_tokenizer

PACKAGES = ("sentencepiece", "google.protobuf")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a\x0e\x0a\x05<unk>\x15\x00\x00\x00\x00\x18\x02")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    return tmp_path


@pytest.mark.parametrize("lacking", [PACKAGES, *((one,) for one in PACKAGES)], ids=" and ".join)
def test_packages_that_are_lacking_are_named(
    lacking: tuple[str, ...], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(name: str) -> object:
        if name in lacking:
            raise ModuleNotFoundError(name)
        return name

    monkeypatch.setattr(tokenizer, "find_spec", found)
    message = r"of tokenizer\.model alone .*pip install sentencepiece protobuf"
    with pytest.raises(ModelError, match=message):
        load_tokenizer(model)


def test_with_both_what_is_wrong_is_said(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "find_spec", lambda name: name)
    with pytest.raises(ModelError, match="holds no tokenizer that can be read: ") as refusal:
        load_tokenizer(model)
    assert "pip install sentencepiece protobuf" not in str(refusal.value)


def test_a_directory_without_any(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no tokenizer that can be read: ") as refusal:
        load_tokenizer(tmp_path)
    assert "sentencepiece protobuf" not in str(refusal.value)


@pytest.mark.skipif(find_spec("sentencepiece") is not None, reason="it is here")
def test_as_it_is_without_them(model: Path) -> None:
    with pytest.raises(ModelError, match="with the packages sentencepiece and protobuf"):
        load_tokenizer(model)

"""Models of Hugging Face's hub: what of a repository is needed, and what is in the cache."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from quire.core.errors import ModelError, ModelNotFoundError, reason

MODEL_FILES = ["*.safetensors", "*.json", "*.model", "*.txt", "*.jinja"]
"""Of a repository: weights, configs, tokenizer and chat template, and how vectors are pooled."""

_SHOWN = 12  # files that a refusal names
# Other formats, and second copies. sentence-transformers numbers the directories of its modules.
_OTHER_FILES = ["[!0-9]*/*", "consolidated*"]


class RemoteFile(NamedTuple):
    """A file of a repository that is needed."""

    name: str
    num_bytes: int
    is_here: bool


class CachedModel(NamedTuple):
    """A repository's newest snapshot in the cache."""

    name: str
    revision: str  # the commit
    directory: Path


def snapshot(name: str, revision: str | None = None, download_dir: str | None = None) -> Path:
    """The directory of a model's files, downloaded if they are not cached yet.

    download_dir: where snapshots are kept; None: in Hugging Face's own cache.

    Raises:
        ModelError: neither the cache nor the hub has them.
    """
    from huggingface_hub import snapshot_download

    with _failures_of(name, revision):
        return Path(
            snapshot_download(
                name,
                revision=revision,
                cache_dir=download_dir,
                allow_patterns=MODEL_FILES,
                ignore_patterns=_OTHER_FILES,
            )
        )


def config_file(name: str) -> Path:
    """A model's config.json, and nothing else of it, downloaded where it is not in the cache yet.

    ModelError: see ``snapshot``.
    """
    from huggingface_hub import hf_hub_download

    with _failures_of(name, None):
        return Path(hf_hub_download(name, "config.json"))


def split_file(name: str) -> tuple[str, str | None]:
    """``repository:file`` -> both; a file may be called by its quantization, such as Q4_K_M."""
    repository, colon, file = name.rpartition(":")
    # Not the one of a drive.
    return (repository, file) if colon and len(repository) > 1 else (name, None)


def choose_gguf(where: str, names: Iterable[str], wanted: str) -> str:
    """The GGUF file that ``wanted`` is, or is the one word at the end of; of parts the first.

    Raises:
        ModelError: there is none, or more than one.
    """
    files = [file for file in names if file.endswith(".gguf")]
    if wanted in files or f"{wanted}.gguf" in files:
        return wanted if wanted in files else f"{wanted}.gguf"
    word = re.compile(rf"(^|[-._/]){re.escape(wanted)}(-00001-of-\d{{5}})?\.gguf", re.I)
    found = [file for file in files if word.search(file)]
    if len(found) == 1:
        return found[0]
    shown = ", ".join(sorted(found or files)[:_SHOWN]) or "none"
    what = "has several such files" if found else "has no such file"
    raise ModelError(f"cannot load {where}:{wanted}: it {what}; GGUF files there: {shown}")


def gguf_files(
    name: str, wanted: str, revision: str | None = None, download_dir: str | None = None
) -> list[RemoteFile]:
    """A repository's GGUF file, or its parts in their order.

    Raises:
        ModelError: as ``choose_gguf``, or neither the hub nor the cache lists the files.
    """
    with _failures_of(name, revision):
        files = _listed(name, revision, download_dir, ["*.gguf"])
        if files is None:
            here = _cached(name, revision, download_dir)
            files = [file for file in _files_in(here) if file.name.endswith(".gguf")]
    first = choose_gguf(name, [file.name for file in files], wanted)
    parts = first.replace("-00001-of-", "-?????-of-")
    return sorted(file for file in files if fnmatchcase(file.name, parts))


def gguf_file(
    name: str, wanted: str, revision: str | None = None, download_dir: str | None = None
) -> Path:
    """A repository's GGUF file, downloaded with its other parts if it is not cached yet.

    Raises:
        ModelError: as ``choose_gguf``, or neither the cache nor the hub has it.
    """
    from huggingface_hub import snapshot_download

    files = [file.name for file in gguf_files(name, wanted, revision, download_dir)]
    with _failures_of(name, revision):
        path = Path(
            snapshot_download(
                name, revision=revision, cache_dir=download_dir, allow_patterns=files
            ),
            files[0],
        )
    if not path.exists():
        raise ModelError(f"cannot load {name}:{files[0]}: it could not be downloaded")
    return path


def files_of(
    name: str, revision: str | None = None, download_dir: str | None = None
) -> list[RemoteFile]:
    """The files that ``snapshot`` would download, the largest first. ModelError: see there."""
    with _failures_of(name, revision):
        files = _listed(name, revision, download_dir, MODEL_FILES, _OTHER_FILES)
        if files is None:
            files = _files_in(snapshot(name, revision, download_dir))
    return sorted(files, key=lambda file: -file.num_bytes)


def _listed(
    name: str,
    revision: str | None,
    download_dir: str | None,
    wanted: list[str],
    unwanted: list[str] | None = None,
) -> list[RemoteFile] | None:
    """The files on the hub; None: it cannot be reached, and there are only the cached ones."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import DryRunError

    try:
        listed = snapshot_download(
            name,
            revision=revision,
            cache_dir=download_dir,
            allow_patterns=wanted,
            ignore_patterns=unwanted,
            dry_run=True,
        )
    except DryRunError:
        return None
    return [RemoteFile(f.filename, f.file_size or 0, not f.will_download) for f in listed]


def _cached(name: str, revision: str | None, download_dir: str | None) -> Path:
    """A cached snapshot, complete or not, since none of its files is known by name."""
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(name, revision=revision, cache_dir=download_dir, allow_patterns=[])
    )


def _files_in(here: Path) -> list[RemoteFile]:
    return [
        RemoteFile(file.relative_to(here).as_posix(), file.stat().st_size, True)
        for file in here.rglob("*")
        if file.is_file()
    ]


def cache_directory(download_dir: str | None = None) -> Path:
    """The directory of snapshots."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(download_dir or HF_HUB_CACHE).expanduser()


def is_offline() -> bool:
    """Whether nothing may be downloaded, since HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE says so."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def why_unreached(most: float = 5.0) -> str | None:
    """Why Hugging Face, or what HF_ENDPOINT names, does not answer now; None: it does.

    most: seconds to wait for its answer.
    """
    from huggingface_hub import constants, get_session

    if is_offline():
        return "HF_HUB_OFFLINE says that nothing may be downloaded"
    try:
        status = get_session().head(constants.ENDPOINT, timeout=most).status_code
    except Exception as error:  # of whichever HTTP library it uses
        return f"{constants.ENDPOINT} cannot be reached: {reason(error)}"
    return f"{constants.ENDPOINT} answers with status {status}" if status >= 400 else None


def cached_models(download_dir: str | None = None) -> list[CachedModel]:
    """Every model in the cache, by name."""
    from huggingface_hub import scan_cache_dir

    directory = cache_directory(download_dir)
    if not directory.is_dir():
        return []
    models = []
    for repository in scan_cache_dir(directory).repos:
        if repository.repo_type == "model" and repository.revisions:
            newest = max(repository.revisions, key=lambda revision: revision.last_modified)
            path = Path(newest.snapshot_path)
            models.append(CachedModel(repository.repo_id, newest.commit_hash, path))
    return sorted(models)


@contextmanager
def _failures_of(name: str, revision: str | None) -> Iterator[None]:
    """The library's failures as ModelErrors."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    unknown = f"cannot load {name}: "
    try:
        yield
        return
    except HFValidationError:
        unknown += "it is neither a directory nor a valid Hugging Face name"
    except GatedRepoError:
        raise ModelError(
            f"cannot load {name}: its owner asks for access first; log in to Hugging Face with an "
            "account that has it, or set HF_TOKEN"
        ) from None
    except RevisionNotFoundError:
        raise ModelError(f"cannot load {name}: it has no revision {revision}") from None
    except RepositoryNotFoundError:
        unknown += (
            "there is no such directory, and no such repository on Hugging Face, unless it is "
            "private, and HF_TOKEN has no access to it"
        )
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        unknown += "it is not a directory, not in the cache, and Hugging Face cannot be reached"
        unknown += " (HF_HUB_OFFLINE)" if is_offline() else ""
    except (HfHubHTTPError, OSError) as error:
        unknown += f"the download failed: {error}"
    raise ModelNotFoundError(unknown, name)

"""Settings of the test process that must be made before torch is loaded, and small models."""

import gc
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from quire.execution.promises import promises_directory
from quire.kernels.threads import wait_briefly

wait_briefly()
# No test looks at the clock. Chance is drawn anew only where long random runs are asked for: what
# fails now fails for what was changed.
AT_RANDOM = "QUIRE_RANDOM_RUNS" in os.environ
settings.register_profile("quire", deadline=None, derandomize=not AT_RANDOM)
settings.load_profile("quire")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
for variable in ("QUIRE_API_KEY", "VLLM_API_KEY", "LLAMA_API_KEY", "OLLAMA_ORIGINS"):
    os.environ.pop(variable, None)  # it would guard every server of the tests


def pytest_collection_finish() -> None:
    """What tests are made of lives as long as they do: collections of garbage pass it over."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """Each test draws the same numbers, whichever ran before it."""
    if not AT_RANDOM:
        random.seed(0)


@pytest.fixture(autouse=True, scope="module")
def engines_are_let_go() -> Iterator[None]:
    """What engines of earlier modules were promised is not there for those of later ones.

    FastAPI keeps all endpoints that it has looked at, and so their apps, engines and pools.
    """
    yield
    if not any(promises_directory().glob(f"{os.getpid()}-*")):
        return  # there are none in this process
    models = sys.modules.get("fastapi.dependencies.models")
    for one in list(vars(models).values()) if models else ():
        if hasattr(one, "cache_clear"):
            one.cache_clear()
    gc.collect()


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a small model, by family; made once a session.

    Tests of what this release of transformers does not know are skipped.
    """
    from support.small_models import CONFIGS, make_model  # needs torch, which not all tests have

    made: dict[str, Path] = {}

    def directory(family: str) -> Path:
        if family not in made:
            import transformers

            if not hasattr(transformers, CONFIGS[family][0]):
                pytest.skip(f"this release of transformers has no {CONFIGS[family][0]}")
            made[family] = make_model(family, tmp_path_factory.mktemp(family))
        return made[family]

    return directory

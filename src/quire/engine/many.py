"""Many prompts in one call: each with what is its own, and errors that say which one is wrong."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar, cast

from quire.core.errors import ConfigError, RequestError
from quire.engine.input_processor import PreparedRequest, Prompt, as_dict

_T = TypeVar("_T")

logger = logging.getLogger(__name__)


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A list of one prompt or of many."""
    one = isinstance(prompts, (str, Mapping)) or (
        isinstance(prompts, Sequence) and len(prompts) > 0 and isinstance(prompts[0], int)
    )
    return [cast(Prompt, prompts)] if one else list(cast("Sequence[Prompt]", prompts))


def each_of(
    given: _T | Sequence[_T], count: int, what: str, one: type | tuple[type, ...]
) -> list[_T]:
    """What is given for all ``count`` prompts, or for each. ``one``: types of what is for all."""
    if isinstance(given, one):
        return [cast(_T, given)] * count
    each = list(cast("Sequence[_T]", given))
    if len(each) != count:
        raise ConfigError(f"{count} prompts came with {len(each)} {what}")
    return each


def with_each(prompts: Sequence[Prompt], option: str, values: Sequence[object]) -> list[Prompt]:
    """The prompts, each with an option of its own, but for those whose value is None."""
    both = zip(prompts, values, strict=True)
    return [one if value is None else {**as_dict(one), option: value} for one, value in both]


def with_options(prompts: Sequence[Prompt], priority: int | Sequence[int] | None) -> list[Prompt]:
    """The prompts, each with its place, and with a max_tokens that is lowered to what is left."""
    places = each_of(priority, len(prompts), "priorities", (int, type(None)))
    options = {"truncate_max_tokens": True}
    return with_each([{**options, **as_dict(one)} for one in prompts], "priority", places)


def tell_shortened(prepared: Sequence[PreparedRequest]) -> None:
    """Say in the log whose max_tokens is above what max_model_len leaves after the prompt."""
    asked = [(one.request.params.max_tokens, one.request.max_tokens) for one in prepared]
    shorter = [(given, left) for given, left in asked if given is not None and given > left > 0]
    if shorter:
        given, left = shorter[0]
        logger.warning(
            "max_tokens is more than max_model_len leaves after %d of %d prompts, and lowered "
            "there: from %d to %d after the first of them",
            len(shorter), len(prepared), given, left,
        )  # fmt: skip


@contextmanager
def naming(what: str, number: int, count: int) -> Iterator[None]:
    """A RequestError about one of several says which."""
    try:
        yield
    except RequestError as error:
        if count == 1 or error.field == "model":  # which is one for all
            raise
        error.args = (f"{what}[{number}]: {error}",)
        raise


def refuse_all_but_none(given: Mapping[str, object]) -> None:
    """Arguments of vLLM's that may be given as it has them by default. ConfigError for others."""
    known = {
        *("tokenization_kwargs", "mm_processor_kwargs", "prompt_adapter_request"),
        *("guided_options_request", "prompt_token_ids", "concurrency_limit"),
        *("prompt_text", "trace_headers", "data_parallel_rank"),
    }
    for name, value in given.items():
        if name not in known:
            raise ConfigError(f"unknown argument {name}")
        if value:
            raise ConfigError(f"{name} is not supported: it may only be None")

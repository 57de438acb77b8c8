"""Adapters as vLLM's users of Python name them, with each request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from quire.core.errors import ConfigError
from quire.core.protocol import Adapter
from quire.engine.adapters import AdapterShelf
from quire.engine.driver import Driver
from quire.engine.many import each_of, with_each
from quire.engine.prompts import Prompt


class LoRARequest(NamedTuple):
    """An adapter, as vLLM's users name it.

    lora_name: what it is called; one adapter at a time is called so.
    lora_int_id: which version of it: another one than before has its directory read again.
    lora_path: the directory; another one than before is read in its place. Requests that run keep
        the weights that they began with. What is read is known by its content: equal files share a
        prefix cache whatever they are called, and others never do.
    load_inplace: read it again, whatever is there by now.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str
    base_model_name: str | None = None
    load_inplace: bool = False


Adapters = LoRARequest | Sequence[LoRARequest | None] | None
"""One for all prompts, or one of each."""


class NamedAdapters:
    """Reads what is named, unless that is what is known by the name."""

    def __init__(self, driver: Driver, problem_with_name: Callable[[str], str | None]) -> None:
        """problem_with_name: what keeps an adapter from being called so; None: nothing does."""
        self._driver, self._problem_with_name = driver, problem_with_name
        self._versions: dict[str, int] = {}  # by name, of those that requests have brought

    def with_each(self, prompts: list[Prompt], asked: Adapters) -> list[Prompt]:
        """The prompts, each with its adapter."""
        if asked is None:
            return prompts
        for_each = [asked] * len(prompts) if isinstance(asked, LoRARequest) else asked
        each: list[LoRARequest | None] = each_of(for_each, len(prompts), "lora_requests", ())
        for one in dict.fromkeys(each):
            if one is not None:
                self.load(one)
        names = [None if one is None else one.lora_name for one in each]
        return with_each(prompts, "adapter", names)

    def load(self, asked: LoRARequest) -> Adapter:
        """The adapter that is meant. A QuireError: there is none, or adapters are not served."""
        shelf = self._driver.engine.capabilities.adapters
        if shelf is None:
            raise ConfigError("lora_request needs enable_lora")
        name = asked.lora_name
        if problem := self._problem_with_name(name):
            raise ConfigError(f"lora_request: {problem}")
        path = Path(asked.lora_path).expanduser()
        self._driver.turn(lambda: self._read(shelf, asked, path))
        return shelf.find(name)

    def _read(self, shelf: AdapterShelf, asked: LoRARequest, path: Path) -> None:
        name, version = asked.lora_name, asked.lora_int_id
        known = name in shelf and self._versions.get(name, version) == version
        if not known or asked.load_inplace or not shelf.is_from(name, path):
            source = shelf.check(path)
            self._driver.change(
                lambda: shelf.add(name, source, asked.base_model_name, in_place=True)
            )
        self._versions[name] = version

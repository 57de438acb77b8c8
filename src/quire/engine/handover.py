"""Blocks of prompts that another engine has computed, or is asked to, before they are let in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from quire.blocks.transfer import BlockFetcher, Missing
from quire.core.memory import BlockHash, KVAllocator, hash_blocks
from quire.core.protocol import Request
from quire.engine.input_processor import PreparedRequest, Prompt
from quire.engine.thread import PreparationThreads

Call = Callable[[Callable[[], Missing]], Awaitable[Missing]]
"""What is returned in the engine's thread, between two steps."""


class Handover:
    """Of an engine that decodes. What does not come is computed here."""

    def __init__(
        self,
        fetcher: BlockFetcher,
        allocator: KVAllocator,
        preparation: PreparationThreads,
        call: Call,
    ) -> None:
        self._fetcher, self._allocator = fetcher, allocator
        self._preparation, self._call = preparation, call

    async def bring(self, prompts: Iterable[Prompt], prepared: Iterable[PreparedRequest]) -> None:
        """The blocks of these prompts that are not here, from whom they name or who is asked."""
        pairs = zip(prompts, prepared, strict=True)
        await asyncio.gather(*(self._bring(prompt, each.request) for prompt, each in pairs))

    async def _bring(self, prompt: Prompt, request: Request) -> None:
        peer = prompt.get("remote_prefill") if isinstance(prompt, Mapping) else None
        prefiller = self._fetcher.prefiller
        size, length = self._allocator.block_size, len(request.prompt_token_ids)
        if request.spans or (peer is None and (prefiller is None or not _generates(request))):
            return
        if peer is None and prefiller is not None and not prefiller.pays(length // size * size):
            return
        hashes = partial(hash_blocks, request.root_hash, request.prompt_token_ids, size)
        names = await self._preparation.run(length, hashes)
        keeps_states = self._fetcher.keeps_states
        if keeps_states:  # of which none is cut back, and a token is left to compute
            names = names[: (length - 1) // size]
        missing = await self._call(partial(_missing, self._allocator, names, keeps_states))
        lacking = max(map(len, missing)) * size
        if peer is None and prefiller is not None and prefiller.pays(lacking):
            peer = await prefiller.prefill(_spelled(request))
        if peer is not None:
            host, port = peer
            await self._fetcher.fetch(host, port, missing)


def _missing(allocator: KVAllocator, names: Sequence[BlockHash], keeps_states: bool) -> Missing:
    """What the pool does not have."""
    contents = allocator.contents
    blocks = [name for name in names if contents is None or contents.locate(name) is None]
    if contents is None or not keeps_states:
        return Missing(blocks)
    known = len(names)
    while known and contents.locate_state(names[known - 1]) is None:
        known -= 1
    return Missing(blocks, names[known:])


def _generates(request: Request) -> bool:
    """What is pooled or scored here needs its prompt's states, which no block holds."""
    scored = request.params.prompt_logprobs is not None
    return request.pooling is None and not scored and request.max_tokens > 0


def _spelled(request: Request) -> dict[str, Any]:
    """The prompt, for an engine that has the same adapters."""
    spelled = {
        "prompt_token_ids": request.prompt_token_ids,
        "cache_salt": request.cache_salt,
        "priority": request.priority,
        "client": request.client,
        "origin": request.origin,
    }
    return spelled | ({} if request.adapter is None else {"adapter": request.adapter.name})

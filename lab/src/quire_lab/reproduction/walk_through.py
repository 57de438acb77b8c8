"""Paging as tutorials show it: block tables after each token, and the memory of models' tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from quire.core.memory import Demand, PagedAllocator
from quire_lab.contiguous.allocator import ContiguousAllocator, Reservation
from quire_lab.reproduction.experiment import Experiment, Finding, Scale, Table
from quire_lab.simulation.catalogue.models import find_model

BLOCK_SIZE = 4
_PROMPT = "Four score and seven years ago our"
_FIRST = (7, 1, 3)  # blocks of the paper's figures, in the order in which they are taken
_POOL = 9  # blocks
_HEAD = (
    "what happens", "block table (block: slots filled)", "blocks held", "saved by sharing",
    "slots filled", "slots empty in them", "blocks free",
)  # fmt: skip
_KIB, _GIB = 2**10, 2**30

_OF_A_TOKEN: Mapping[str, tuple[tuple[float, ...], str]] = {
    "opt-13b": ((800,), "the paper, section 3"),
    "gpt-32x32x128": ((512,), "an article's"),
    "llama-3-8b": ((128,), '"The Weight of Remembering", 2026'),
    "deepseek-v3": ((69,), "the same"),
    "llama-7b": ((), ""),
    "llama-2-70b": ((), ""),
    "opt-175b": ((), ""),
    "mistral-7b": ((), ""),
    "mixtral-8x7b": ((), ""),
    "qwen2.5-7b": ((), ""),
    "qwen3-8b": ((), ""),
    "gpt-oss-20b": ((), ""),
}
"""KiB of a token that were published, and where."""

_OF_A_TEXT: Sequence[tuple[str, int, float, str]] = (
    ("opt-13b", 2048, 1.6, "the paper, section 3"),
    ("llama-13b", 2048, 1.7, "vLLM's announcement; in GB of 10⁹ bytes 1.68"),
    ("llama-3.1-8b", 16_000, 1.95, "Hugging Face's announcement of Llama 3.1"),
    ("llama-3.1-8b", 128_000, 15.62, "the same"),
    ("llama-3.1-70b", 128_000, 39.06, "the same"),
    ("llama-3.1-405b", 128_000, 123.05,
     "the same: for 16 KV heads, with which it came out at first; since then it has 8"),
)  # fmt: skip
"""GiB of a text of so many tokens that were published, and where."""


def walk_through(scale: Scale) -> Experiment:
    """Figures 3, 6 and 8, and tables."""
    grows, growing = _one_grows()
    shares, sharing = _two_share()
    return Experiment(
        "walk-through",
        "Block tables after each token, and what a token costs",
        "How does a block table come about, token by token? What would a region have wasted? How "
        "much memory does a token of a model that one knows take?",
        f"The real allocator with {_POOL} blocks of {BLOCK_SIZE} tokens, of which 7, 1 and 3 are "
        f'free first, as in the paper; "{_PROMPT}" has seven tokens. Of models, bytes follow from '
        "their shape: 2 × layers × KV heads × head size × bytes of a number, of latent attention "
        "one vector a layer.",
        (*_regions(), *growing, *sharing, *_tokens()),
        "At most one block of a sequence has empty slots, its last, where a region for the longest "
        "text has thousands. Copies of a text cost nothing until they part, and then one block. "
        "What a token takes depends on KV heads more than on the size of a model: 800 KiB of one "
        "with 13 billion parameters, 69 of one with 671.",
        tables=(
            Table("Figure 6: a sequence takes blocks as it grows", _HEAD, grows),
            Table("Figure 8: two samples of one prompt", _HEAD, shares),
        ),
    )


def _pool() -> PagedAllocator:
    """Of which the paper's blocks are taken first: what was freed last is."""
    pool = PagedAllocator(_POOL, BLOCK_SIZE)
    owners = {}
    for seq_id in range(_POOL):
        pool.admit(seq_id, Demand(BLOCK_SIZE))
        owners[pool.table(seq_id).block_ids[0]] = seq_id
    for block in sorted(owners, key=lambda block: (block in _FIRST, -_place(block))):
        pool.free(owners[block])
    return pool


def _place(block: int) -> int:
    return _FIRST.index(block) if block in _FIRST else block


def _filled(pool: PagedAllocator, seq_id: int) -> dict[int, int]:
    """Tokens in each of its blocks, which its table and its length say."""
    length, blocks = pool.num_tokens(seq_id), pool.table(seq_id).block_ids
    return {b: max(0, min(BLOCK_SIZE, length - BLOCK_SIZE * i)) for i, b in enumerate(blocks)}


def _row(pool: PagedAllocator, what: str, **names: int) -> tuple[str, ...]:
    """names: of the sequences that live, and their ids."""
    tables = []
    for name, seq_id in names.items():
        cells = ", ".join(f"{block}: {count}" for block, count in _filled(pool, seq_id).items())
        tables.append(f"{name}  {cells}")
    held, saved = pool.blocks_held(list(names.values()))
    usage = pool.usage()
    figures = (held, saved, usage.used, usage.internal, pool.num_free_blocks)
    return (what, "; ".join(tables) or "none", *map(str, figures))


def _one_grows() -> tuple[tuple[tuple[str, ...], ...], list[Finding]]:
    pool = _pool()
    rows = [_row(pool, "an empty pool")]
    pool.admit(0, Demand(len(_PROMPT.split())))
    rows.append(_row(pool, "admitted: room for the prompt, and no more", A=0))
    pool.append({0: len(_PROMPT.split())})
    rows.append(_row(pool, f'computed: "{_PROMPT}"', A=0))
    findings = [
        Finding("blocks of a prompt of 7 tokens", (2,), len(_filled(pool, 0)), "blocks"),
        Finding("slots filled in the second", (3,), _filled(pool, 0)[1], "slots"),
    ]
    for word, block, published in (("fathers", 1, 4), ("brought", 3, 1)):
        pool.append({0: 1})
        rows.append(_row(pool, f'"{word}"', A=0))
        what = f'slots filled in block {block}, once "{word}" is there'
        findings.append(Finding(what, (published,), _filled(pool, 0)[block], "slots"))
    empty = pool.usage().internal
    findings += [
        Finding("blocks then", (3,), len(_filled(pool, 0)), "blocks"),
        Finding("slots empty in them", (), empty, "slots", "at most a block less one, ever"),
    ]
    pool.free(0)
    rows.append(_row(pool, "ended: all is free"))
    return tuple(rows), findings


def _two_share() -> tuple[tuple[tuple[str, ...], ...], list[Finding]]:
    pool = _pool()
    pool.admit(0, Demand(len(_PROMPT.split())))
    pool.append({0: len(_PROMPT.split())})
    rows = [_row(pool, f'A has computed "{_PROMPT}"', A=0)]
    pool.fork(0, 1)
    rows.append(_row(pool, "B is forked: it shares all", A=0, B=1))
    sharers = pool.device.ref_counts
    findings = [Finding("who holds block 7 after a fork", (2,), sharers[7], "sequences")]
    moves = pool.append({0: 1, 1: 1}) or []
    copied = ", ".join(f"block {move.source} to {move.target}" for move in moves)
    rows.append(_row(pool, f"each adds a token: {copied} is copied first", A=0, B=1))
    findings += [
        Finding("blocks copied when both go on", (1,), len(moves), "blocks"),
        Finding("who holds block 1 then", (1,), sharers[1], "sequences"),
        Finding("blocks that two texts of 8 tokens take then", (3,), pool.blocks_held((0, 1))[0],
                "blocks", "4 without sharing"),
    ]  # fmt: skip
    pool.free(0)
    rows.append(_row(pool, "A ends: what B shares stays", B=1))
    pool.free(1)
    rows.append(_row(pool, "B ends: all is free"))
    return tuple(rows), findings


def _regions() -> Iterator[Finding]:
    """Figure 3: after the first token of two requests, in regions for the longest text of each."""
    for name, tokens, longest, published, why in (
        ("A", 8, 2048, 2040, "2 will be used, 2,038 never"),
        ("B", 4, 512, 508, "1 will be used, 507 never"),
    ):
        region = ContiguousAllocator(longest // BLOCK_SIZE, BLOCK_SIZE, Reservation.MAX, longest)
        region.admit(0, Demand(tokens, longest=tokens))
        region.append({0: tokens})
        usage = region.usage()
        yield Finding(
            f"figure 3, {name}: slots empty in a region of {longest:,}, {tokens} tokens in it",
            (published,), usage.capacity - usage.used - usage.free, "slots", why,
        )  # fmt: skip


def _tokens() -> Iterator[Finding]:
    for name, (published, source) in _OF_A_TOKEN.items():
        ours = find_model(name).kv_bytes_per_token / _KIB
        yield Finding(f"a token of {name}", published, ours, "KiB", source)
    for name, length, figure, source in _OF_A_TEXT:
        ours = length * find_model(name).kv_bytes_per_token / _GIB
        yield Finding(f"{length:,} tokens of {name}", (figure,), ours, "GiB", source)

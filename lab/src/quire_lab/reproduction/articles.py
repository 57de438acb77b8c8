"""The worked examples by which articles explain paging, on the real allocators."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from quire.core.memory import BlockTable, Demand, MoveKind, PagedAllocator
from quire.engine.config import EngineConfig
from quire_lab.contiguous.allocator import ContiguousAllocator, Reservation
from quire_lab.reproduction.experiment import Experiment, Finding, Scale
from quire_lab.simulation.arrivals import ClosedLoop
from quire_lab.simulation.catalogue.machines import find_machine
from quire_lab.simulation.catalogue.models import find_model
from quire_lab.simulation.planning.deployment import Deployment
from quire_lab.simulation.simulator import Simulator
from quire_lab.workload import Lengths, Synthetic

BLOCK_SIZE = 16
KIB, MIB, GIB = 2**10, 2**20, 2**30
UTILISATION: Mapping[int, tuple[float, float]] = {
    10: (28.8, 98.7), 25: (21.1, 98.2), 50: (23.9, 98.5), 100: (24.9, 98.6), 200: (25.1, 98.5),
}  # fmt: skip
"""An article's, in percent, by requests in a batch: naive and paged."""


def worked_examples(scale: Scale) -> Experiment:
    """Examples that can be checked with pencil and paper."""
    token = find_model("gpt-32x32x128").kv_bytes_per_token
    findings = [
        Finding("keys and values of a token, 32 layers × 32 heads × 128, fp16", (512,),
                token / KIB, "KiB"),
        *_reserved_slots(token),
        *_utilisation(token),
        *_system_prompt(token),
        *_five_requests(),
        *_one_table(),
        *_copilot(scale.seed),
    ]  # fmt: skip
    return Experiment(
        "articles",
        "Worked examples of articles",
        "Articles explain paging by small examples. Do the real allocators give the same?",
        "Every figure is read off an allocator after the requests have been admitted to it; "
        "blocks of 16 tokens, and 2,048 slots for each request where memory is contiguous. Lengths "
        "of batches are drawn as the article draws them: NumPy's normal distribution of mean 500 "
        "and deviation 200, cut to 200 to 2,048 tokens, from seed 42, one batch after the other. "
        "(The article's text was not at hand: these draws give its ten figures.) The "
        "copilot is simulated: Llama 2 7B on one A100-40 (which the example does not name), "
        "sequences of at most 2,048 tokens as in the example, 50 users who send their next request "
        "when they have the last answer.",
        tuple(findings),
        "What is arithmetic is the same to the last digit; articles cut 5.86, 39.06 and 97.66 % "
        "off rather than rounding. The copilot is not: with the limit of 2,048 tokens that the "
        "example names, contiguous memory holds about twice the 8 to 12 users it tells of. Its "
        "figure comes out with regions of 4,096 slots, which is Llama 2's longest text; so paging "
        "gains a factor of two there, and of four only under that assumption.",
        charted=("%",),
    )


def _reserved_slots(token: int) -> list[Finding]:
    findings = []
    for tokens, published in ((120, 5.8), (500, 24.4), (800, 39.0), (2000, 97.6)):
        allocator = _contiguous(1)
        _admit(allocator, 0, tokens)
        usage = allocator.usage()
        held = usage.capacity - usage.free
        request = f"a request of {tokens:,} tokens in 2,048"
        findings += [
            Finding(f"slots used by {request}", (published,), 100 * usage.used / held, "%"),
            Finding(f"memory wasted by {request}", (), (held - usage.used) * token / MIB, "MiB",
                    f"of {held * token / MIB:,g} MiB"),
        ]  # fmt: skip
    return findings


def _utilisation(token: int) -> list[Finding]:
    """Batches of requests, drawn as the article draws them."""
    random = np.random.RandomState(42)
    findings = []
    for count, published in UTILISATION.items():
        drawn = np.clip(random.normal(500, 200, count), 200, 2048).astype(int).tolist()
        naive = _contiguous(1 << (count - 1).bit_length())
        paged = PagedAllocator(sum(-(-tokens // BLOCK_SIZE) for tokens in drawn), BLOCK_SIZE)
        allocators: tuple[ContiguousAllocator | PagedAllocator, ...] = (naive, paged)
        for name, allocator, share in zip(("naive", "paged"), allocators, published, strict=True):
            for seq_id, tokens in enumerate(drawn):
                _admit(allocator, seq_id, tokens)
            usage = allocator.usage()
            held = usage.capacity - usage.free
            batch = f"{count} requests, {name}"
            findings += [
                Finding(f"utilisation, {batch}", (share,), 100 * usage.used / held, "%"),
                Finding(f"memory wasted, {batch}", (), (held - usage.used) * token / GIB, "GiB",
                        f"of {held * token / GIB:.3g} GiB held"),
            ]  # fmt: skip
    return findings


def _system_prompt(token: int) -> list[Finding]:
    """Ten requests that share a system prompt of 200 tokens; then the third one diverges."""
    alone = PagedAllocator(200, BLOCK_SIZE)
    for seq_id in range(10):
        _admit(alone, seq_id, 200)
    shared = PagedAllocator(200, BLOCK_SIZE)
    _admit(shared, 0, 200)
    for seq_id in range(1, 10):
        shared.fork(0, seq_id)
    without, _ = alone.blocks_held(range(10))
    with_sharing, saved = shared.blocks_held(range(10))
    before = shared.table(2).block_ids
    moves = shared.append({2: 1}) or []
    after = shared.table(2).block_ids
    return [
        Finding("pages of ten system prompts of 200 tokens, each its own", (130,), without,
                "pages"),
        Finding("the same, shared", (13,), with_sharing, "pages"),
        Finding("memory saved", (936,), saved * BLOCK_SIZE * token / MIB, "MiB"),
        Finding("pages copied when request 3 diverges", (1,),
                sum(move.kind is MoveKind.COPY for move in moves), "pages",
                "copy on write: only the last, partly filled page"),
        Finding("pages that request 3 still shares then", (12,),
                sum(a == b for a, b in zip(before, after, strict=True)), "pages"),
    ]  # fmt: skip


def _five_requests() -> list[Finding]:
    """Five requests side by side; two end, and their memory is wanted by a sixth."""
    lengths = (320, 48, 160, 96, 272)
    allocator = PagedAllocator(sum(lengths) // BLOCK_SIZE, BLOCK_SIZE)
    for seq_id, tokens in enumerate(lengths):
        _admit(allocator, seq_id, tokens)
    usage = allocator.usage()
    pages = [allocator.blocks_held(range(5))[0]]
    allocator.free(1)
    pages.append(allocator.blocks_held((0, 2, 3, 4))[0])
    allocator.free(3)
    late = allocator.admit(5, Demand(144))
    pieces = len(allocator.table(5).block_ids) if late is not None else 0
    return [
        Finding("blocks of five requests of 320, 48, 160, 96 and 272 tokens", (56,),
                usage.capacity // BLOCK_SIZE, "blocks"),
        Finding("slots empty in them", (0,), usage.internal, "slots",
                "all lengths are multiples of 16"),
        *(Finding(f"pages of a pool that the five hold{when}", (published,), 100 * held / 512, "%",
                  "of 512, which gives the article's figures")
          for when, published, held in zip(
              ("", ", once the second has ended"), (10.9, 10.4), pages, strict=True)),
        Finding("blocks of a sixth of 144 tokens, in the holes that the second and fourth left",
                (), pieces, "blocks", "no hole is as long: contiguous memory could not take it"),
    ]  # fmt: skip


def _one_table() -> list[Finding]:
    """A request of 825 tokens; and one of 41 tokens whose blocks are 7, 3 and 12."""
    allocator = PagedAllocator(60, BLOCK_SIZE)
    _admit(allocator, 0, 825)
    findings = [
        Finding("blocks of a request of 825 tokens", (52,), len(allocator.table(0).block_ids),
                "blocks"),
        Finding("slots empty in the last one", (7,), allocator.usage().internal, "slots"),
    ]  # fmt: skip
    table = scattered_table()
    filled = [min(BLOCK_SIZE, 41 - BLOCK_SIZE * place) for place in range(len(table.block_ids))]
    for block, published, slots in zip(table.block_ids, (16, 16, 9), filled, strict=True):
        findings.append(
            Finding(f"41 tokens in blocks 7, 3, 12: slots filled in block {block}", (published,),
                    slots, "slots")
        )  # fmt: skip
    for position in (0, 20, 40):
        block, offset = divmod(table.slot(position), BLOCK_SIZE)
        findings.append(
            Finding(f"the same: where position {position} is in the pool", (),
                    table.slot(position), "slot", f"place {offset} of block {block}")
        )  # fmt: skip
    return findings


def scattered_table() -> BlockTable:
    """Blocks of a request of 41 tokens in a pool where only 7, 3 and 12 are free."""
    allocator = PagedAllocator(16, BLOCK_SIZE)
    for seq_id in range(16):
        _admit(allocator, seq_id, BLOCK_SIZE)
    owners = {allocator.table(seq_id).block_ids[0]: seq_id for seq_id in range(16)}
    for block in (12, 3, 7):  # what was freed last is taken first
        allocator.free(owners[block])
    _admit(allocator, 16, 41)
    return allocator.table(16)


def _copilot(seed: int) -> list[Finding]:
    """Fifty users of a code assistant, with 625 to 1,025 tokens in and 100 to 500 out."""
    where = Deployment(
        find_model("llama-2-7b"),
        find_machine("a100-40"),
        config=EngineConfig(enable_prefix_caching=False),
    )
    inputs, outputs = Lengths("uniform", 825, 200), Lengths("uniform", 300, 200)
    findings = []
    for kind, longest, published, name, why in (
        ("max", 2048, (8, 12), "2,048 slots for each", "the article's own limit"),
        (
            "max", 4096, (), "4,096 slots for each",
            "what gives the article's 8 to 12: regions as long as the model's longest text, twice "
            "the limit that the article names",
        ),
        ("paged", 2048, (40, 50), "paged", "the same limit"),
    ):  # fmt: skip
        limits = where.under(kind).configured(max_model_len=longest).limits()
        simulator = Simulator(limits, where.cost_model(limits.block_size))
        users = ClosedLoop(Synthetic(500, inputs, outputs, seed=seed), 50)
        result = simulator.serve(users)
        findings.append(
            Finding(f"copilot: users of 50 whose requests run, {name}", published,
                    result.mean_running, "users", f"{why}; {result.most_running} at most")
        )  # fmt: skip
    return findings


def _contiguous(regions: int) -> ContiguousAllocator:
    return ContiguousAllocator(regions * 2048 // BLOCK_SIZE, BLOCK_SIZE, Reservation.MAX, 2048)


def _admit(allocator: PagedAllocator | ContiguousAllocator, seq_id: int, tokens: int) -> None:
    """Admit a sequence and compute its whole prompt."""
    admitted = allocator.admit(seq_id, Demand(tokens, longest=tokens))
    moves = allocator.append({seq_id: tokens})
    assert admitted == 0 and moves == [], "the example has room for it"

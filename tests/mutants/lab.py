"""The same scheduler on a virtual clock, and what is learnt from it."""

from __future__ import annotations

from mutants.mutant import Mutant

_LAB, _OF_LAB = "lab/src/quire_lab", "lab/tests/pure"
_BUDDY, _TRACES = f"{_OF_LAB}/contiguous/test_buddy.py", f"{_OF_LAB}/workload/test_traces.py"

MUTANTS = (
    Mutant(
        "buddies are never merged",
        f"{_LAB}/contiguous/buddy.py",
        "        while self._take_out(start ^ (1 << order), order):\n",
        "        while False:\n",
        f"{_BUDDY}::test_a_region_is_split_down_to_the_size_asked_for_and_merges_back",
    ),
    Mutant(
        "buddies are merged once",
        f"{_LAB}/contiguous/buddy.py",
        "        while self._take_out(start ^ (1 << order), order):\n",
        "        if self._take_out(start ^ (1 << order), order):\n",
        f"{_BUDDY}::test_a_region_is_split_down_to_the_size_asked_for_and_merges_back",
    ),
    Mutant(
        "the wrong half is split",
        f"{_LAB}/contiguous/buddy.py",
        "insort(self._free[half], ((start >> half) ^ 1) << half)",
        "insort(self._free[half], (start >> half) << half)",
        f"{_BUDDY}::test_claim_takes_the_very_region",
    ),
    Mutant(
        "an exchange that fails keeps what it took",
        f"{_LAB}/contiguous/buddy.py",
        "                        self.release(region)\n                    for old",
        "                        pass\n                    for old",
        f"{_BUDDY}::test_an_exchange_that_fails_has_changed_nothing",
    ),
    Mutant(
        "any free region is taken, not the smallest",
        f"{_LAB}/contiguous/buddy.py",
        "        for free in self._free[order:]:\n",
        "        for free in reversed(self._free[order:]):\n",
        f"{_BUDDY}::test_any_order_of_taking_gives_the_same_answer",
    ),
    Mutant(
        "a JSONL trace without hashes is in milliseconds",
        f"{_LAB}/workload/units.py",
        "    if len(units) == 1:\n",
        '    if not units:\n        return "ms", ""\n    if len(units) == 1:\n',
        f"{_TRACES}::test_a_trace_whose_times_may_be_either_is_refused",
    ),
    Mutant(
        "seconds since 1970 are taken for milliseconds",
        f"{_LAB}/workload/units.py",
        "    if seen in (None, unit):\n",
        "    if True:\n",
        f"{_TRACES}::test_a_column_in_another_unit_than_named_is_refused",
    ),
    Mutant(
        "hashes of 16 tokens are taken for 512",
        f"{_LAB}/workload/units.py",
        "            return TIMED_TRACE_BLOCK\n    return MOONCAKE_BLOCK",
        "            return MOONCAKE_BLOCK\n    return MOONCAKE_BLOCK",
        f"{_TRACES}::test_what_a_traces_times_are_counted_in_is_seen_from_its_rows",
    ),
)

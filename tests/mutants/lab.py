"""The same scheduler on a virtual clock, and what is learnt from it."""

from __future__ import annotations

from mutants.mutant import Mutant

_LAB, _OF_LAB = "lab/src/quire_lab", "lab/tests/pure"
_BUDDY, _TRACES = f"{_OF_LAB}/contiguous/test_buddy.py", f"{_OF_LAB}/workload/test_traces.py"
_COMBINATION = f"{_OF_LAB}/simulation/test_combination.py"
_ENGINES = f"{_OF_LAB}/simulation/test_engines.py"

_AHEAD = f"{_OF_LAB}/simulation/test_skip_ahead.py"
_KEPT = f"{_AHEAD}::test_what_layers_keep_is_the_same"

MUTANTS = (
    Mutant(
        "steps with prompts that are recorded are launched kernel by kernel",
        f"{_LAB}/simulation/roofline.py",
        "each = machine.piece_seconds if recorded else machine.launch_seconds",
        "each = machine.launch_seconds",
        "lab/tests/pure/simulation/test_published.py::test_what_is_recorded_is_launched_at_once",
    ),
    Mutant(
        "a window leaves nothing behind where decoding begins",
        f"{_LAB}/simulation/steady_decoding.py",
        "self._plan_take(row, steps, 0 if self._windows else room)",
        "self._plan_take(row, steps, room)",
        _KEPT,
    ),
    Mutant(
        "states are copied where nobody looks",
        f"{_LAB}/simulation/steady_decoding.py",
        "many = not self._room.copies_states and self._room",
        "many = self._room",
        _KEPT,
    ),
    Mutant(
        "what is seen grows a step longer than a window",
        f"{_LAB}/simulation/seen_tokens.py",
        "full, when = self._full[index], step + most - num_tokens",
        "full, when = self._full[index], step + most - num_tokens + 1",
        f"{_AHEAD}::test_steps_of_windows_and_of_states_are_skipped_too",
    ),
    Mutant(
        "who waits is not asked again as windows leave blocks",
        f"{_LAB}/simulation/fast_forward.py",
        "self._time_matters |= any(",
        "self._forgets = any(",
        _KEPT,
    ),
    Mutant(
        "kernels of prompts are launched for nothing",
        f"{_LAB}/simulation/roofline.py",
        "launches = each * self.model.num_layers",
        "launches = 0.0",
        f"{_OF_LAB}/simulation/test_published.py::test_kernels_of_prompts_are_launched_layer_by_layer",
    ),
    Mutant(
        "who does not fit is told no form",
        f"{_LAB}/simulation/planning/deployment.py",
        "        if self.model.form is not None:\n            return []\n",
        "        return []\n",
        f"{_OF_LAB}/simulation/test_catalogue.py"
        "::test_what_does_not_fit_is_told_the_forms_in_which_it_would",
    ),
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
    Mutant(
        "replicas cost nothing",
        f"{_LAB}/simulation/planning/combination.py",
        "(cost * replicas, -hope,",
        "(cost, -hope,",
        f"{_COMBINATION}::test_nothing_cheaper_is_enough",
    ),
    Mutant(
        "of a rounded combination no exact one is told",
        f"{_LAB}/simulation/planning/combination.py",
        "    if not losses(found.deployment, base):\n",
        "    if True:\n",
        f"{_COMBINATION}::test_the_cheapest_that_rounds_nothing_is_told_beside_one_that_does",
    ),
    Mutant(
        "machines are bought where there is enough",
        f"{_LAB}/simulation/planning/ranking.py",
        "        if self.is_served:\n            coming",
        "        if False:\n            coming",
        f"{_COMBINATION}::test_nothing_is_bought_where_there_is_enough",
    ),
    Mutant(
        "groups that attend for themselves copy their cache",
        f"{_LAB}/simulation/planning/deployment.py",
        "        return self.model.kv_copies(self.group)\n",
        "        return self.model.kv_copies(self.tensor_parallel)\n",
        f"{_ENGINES}::test_groups_that_attend_for_themselves",
    ),
    Mutant(
        "each group has all experts",
        f"{_LAB}/simulation/planning/deployment.py",
        "            weights -= round(",
        "            weights -= 0 * round(",
        f"{_ENGINES}::test_groups_that_attend_for_themselves",
    ),
    Mutant(
        "experts are read by every group",
        f"{_LAB}/simulation/roofline.py",
        "groups * read - (groups - 1) * chosen * self._expert_bytes",
        "groups * read",
        f"{_ENGINES}::test_groups_that_attend_for_themselves",
    ),
    Mutant(
        "stages compute at once",
        f"{_LAB}/simulation/roofline.py",
        "        return 1 if self.division.in_stages else self.tensor_parallel\n",
        "        return self.tensor_parallel\n",
        f"{_ENGINES}::test_stages_compute_one_after_another",
    ),
    Mutant(
        "a share of what is free is one of all",
        f"{_LAB}/simulation/planning/deployment.py",
        "            room = int(room * engine.memory.share_of_free)\n",
        "            pass\n",
        f"{_ENGINES}::test_pools_by_each_engine_s_rule",
    ),
    Mutant(
        "forms are had on every machine",
        f"{_LAB}/simulation/catalogue/engines.py",
        "        if self.without is not None and machine.has_units(self.without):\n",
        "        if False:\n",
        f"{_ENGINES}::test_forms_by_machine",
    ),
    Mutant(
        "a command rounds a checkpoint that is rounded",
        f"{_LAB}/simulation/planning/starting.py",
        "    own = None if form is None or is_stored else",
        "    own = None if form is None else",
        f"{_ENGINES}::test_commands_have_what_the_plan_has",
    ),
    Mutant(
        "a plan's pool holds in each KV group what all pages would, if it had them alone",
        "lab/src/quire_lab/simulation/planning/plan.py",
        "return seqs_that_fit(self.limits, math.ceil(sum(self.sample.mean_tokens)))",
        "return min(one.seqs_that_fit(math.ceil(sum(self.sample.mean_tokens)), self.limits.block_size) for one in self.limits.kv_groups)",
        "lab/tests/pure/simulation/test_planner.py::test_a_pool_holds_as_many_requests_as_an_allocator_lets_in",
    ),
)

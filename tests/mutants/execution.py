"""A step becomes tokens; and the memory and threads that it has."""

from __future__ import annotations

from mutants.mutant import Mutant

_EXECUTION, _OF_EXECUTION = "src/quire/execution", "tests/torch/execution"
_SAMPLING, _SAMPLER = f"{_EXECUTION}/sampling", f"{_OF_EXECUTION}/test_sampler.py"
_PAST, _LIMITS = f"{_OF_EXECUTION}/test_past.py", f"{_OF_EXECUTION}/test_memory_limits.py"
_PROMISES, _BUDGET = f"{_OF_EXECUTION}/test_promises.py", f"{_OF_EXECUTION}/test_memory_budget.py"
_MESSAGES = f"{_OF_EXECUTION}/test_rank_messages.py"
_RECURRENCE = "src/quire/kernels/gpu/programs/recurrence.py"
_OF_RECURRENCE = "tests/torch/kernels/test_gpu_recurrence.py"
_NOWHERE = "test_states_of_sequences_that_pad_a_batch_are_nowhere"

MUTANTS = (
    Mutant(
        "what is derived of a text is shared by forks",
        f"{_SAMPLING}/past.py",
        "other._counts, other._counted = self._counts.copy(), self._counted",
        "other._counts, other._counted = self._counts, self._counted",
        f"{_PAST}::test_a_fork_goes_its_own_way",
    ),
    Mutant(
        "what is derived of a text is not taken back with it",
        f"{_SAMPLING}/past.py",
        "        if start < self._counted:\n            self.counts(start)\n",
        "",
        f"{_PAST}::test_a_fork_goes_its_own_way",
    ),
    Mutant(
        "a token that is taken back stays counted",
        f"{_SAMPLING}/past.py",
        "            self._counts.remove(self._output[self._counted])\n",
        "            pass\n",
        f"{_PAST}::test_a_fork_goes_its_own_way",
    ),
    Mutant(
        "the last token is taken to be as it was known",
        f"{_SAMPLING}/past.py",
        "if start == len(output) - 1 and output[start] == token_ids[0]:",
        "if start == len(output) - 1:",
        f"{_PAST}::test_a_fork_goes_its_own_way",
    ),
    Mutant(
        "of few tokens one is drawn in another order where top_k narrows them",
        f"{_SAMPLING}/sampler.py",
        "    return not params.edits_some_logits and not filtered\n",
        "    return not params.edits_some_logits\n",
        f"{_SAMPLER}::test_what_masks_leave_is_chosen_by_the_row_alone",
    ),
    Mutant(
        "a bias that takes little time is not told",
        f"{_SAMPLING}/sampler.py",
        "        if told or taken > _CHEAP * len(edits):",
        "        if taken > _CHEAP * len(edits):",
        f"{_SAMPLER}::test_masks_that_take_next_to_nothing_are_not_told",
    ),
    Mutant(
        "branches of a request draw the same numbers",
        f"{_SAMPLING}/rows.py",
        "return (splitmix64(seed, 0, branch, position) >> 11) * 2.0**-53",
        "return (splitmix64(seed, 0, 0, position) >> 11) * 2.0**-53",
        f"{_SAMPLER}::test_branches_of_a_request_differ",
    ),
    Mutant(
        "neighbouring seeds draw neighbouring numbers",
        f"{_SAMPLING}/rows.py",
        "return (splitmix64(seed, 0, branch, position) >> 11) * 2.0**-53",
        "return ((seed + branch + position) % 7) / 7",
        f"{_SAMPLER}::test_neighbouring_draws_are_unrelated",
    ),
    Mutant(
        "bans do not yield where they would forbid everything",
        f"{_SAMPLING}/logits_processors.py",
        "    flat[places] = torch.where(stuck[numbers], kept, values)\n",
        "",
        f"{_SAMPLER}::test_bans_yield_where_they_would_forbid_everything",
    ),
    Mutant(
        "the end is not held back before min_tokens",
        f"{_SAMPLING}/logits_processors.py",
        "    if row.num_output_tokens < row.params.min_tokens:\n",
        "    if False:\n",
        f"{_SAMPLER}::test_min_tokens_holds_back_the_end",
    ),
    Mutant(
        "a repetition is divided whatever its sign",
        f"{_SAMPLING}/logits_processors.py",
        "torch.where(logits > 0, logits / penalties, logits * penalties)",
        "logits / penalties",
        f"{_SAMPLER}::test_edits_are_those_of_the_definitions",
    ),
    Mutant(
        "a presence counts each time",
        f"{_SAMPLING}/logits_processors.py",
        "np.frombuffer(counts.counts, np.float32) * frequency + presence",
        "np.frombuffer(counts.counts, np.float32) * (frequency + presence)",
        f"{_SAMPLER}::test_edits_are_those_of_the_definitions",
    ),
    Mutant(
        "a parameter is declared, and does nothing",
        f"{_SAMPLING}/logits_processors.py",
        "        if params.logit_bias:\n",
        "        if False:\n",
        f"{_SAMPLER}::test_edits_are_those_of_the_definitions",
    ),
    Mutant(
        "which of equally likely tokens is told depends on what others ask for",
        f"{_SAMPLING}/sampler.py",
        "return bool((tied & (last >= 0)).any())",
        "return False",
        f"{_SAMPLER}::test_what_others_ask_for_does_not_choose_among_equals",
    ),
    Mutant(
        "a row of NaN gives a token",
        f"{_SAMPLING}/sampler.py",
        "is_sound = math.isfinite(raw_peak) and math.isfinite(peak)",
        "is_sound = True",
        f"{_SAMPLER}::test_a_row_without_a_distribution_is_none_and_harms_no_other",
    ),
    Mutant(
        "chunk sums are added up where chunks are cut",
        f"{_EXECUTION}/pooling.py",
        "rows = torch.cat([self.kept[chunk.seq_id][None], rows])",
        "rows = torch.cat([rows.sum(0)[None], self.kept[chunk.seq_id][None]])",
        f"{_OF_EXECUTION}/test_pooling.py::test_a_sum_does_not_depend_on_where_it_is_cut",
    ),
    Mutant(
        "`numactl --membind` is not read",
        f"{_EXECUTION}/memory_limits.py",
        '        lists.append(policy.rpartition(":")[2])\n',
        "        pass\n",
        f"{_LIMITS}::test_nodes_that_memory_may_come_from",
    ),
    Mutant(
        "a cgroup above the process's own is not read",
        "src/quire/kernels/cgroups.py",
        "for directory in (group, *group.parents):",
        "for directory in (group,):",
        f"{_BUDGET}::test_the_least_of_nested_cgroups_is_what_is_free",
    ),
    Mutant(
        "pages of files count as taken",
        f"{_EXECUTION}/memory_limits.py",
        "max(0, (used or 0) - _of_files(group, total))",
        "used or 0",
        f"{_BUDGET}::test_pages_of_files_are_free_memory",
    ),
    Mutant(
        "what others were promised is as large as when they began",
        f"{_EXECUTION}/promises.py",
        "taken = 0 if has is None else has - self.base",
        "taken = 0",
        f"{_PROMISES}::test_what_has_been_taken_is_not_promised_any_more",
    ),
    Mutant(
        "a dead engine's promise counts",
        f"{_EXECUTION}/promises.py",
        "return None if _takes(file, fcntl.LOCK_SH) else Promise(*json.load(file))",
        "return Promise(*json.load(file))",
        f"{_PROMISES}::test_what_the_dead_leave_behind_is_removed",
    ),
    Mutant(
        "of engines in one process only one is promised anything",
        f"{_EXECUTION}/promises.py",
        "total += one.num_bytes",
        "total = one.num_bytes",
        f"{_PROMISES}::test_who_measures_counts_engines_of_its_own_process_but_not_itself",
    ),
    Mutant(
        "what a process has let go of is promised to its engines",
        f"{_EXECUTION}/promises.py",
        "return min(self.num_bytes, max(0, self.num_bytes - taken))",
        "return max(0, self.num_bytes - taken)",
        f"{_PROMISES}::test_engines_that_follow_one_another_inherit_nothing",
    ),
    Mutant(
        "adapters are told off by one",
        f"{_EXECUTION}/ranks/messages.py",
        "    place += DIGEST * num_adapters\n",
        "    place += DIGEST * (num_adapters - 1)\n",
        f"{_MESSAGES}::test_an_order_arrives_as_it_was",
    ),
    Mutant(
        "what is to be stored is told without its tokens",
        f"{_EXECUTION}/ranks/messages.py",
        '        numbers += [*unpack("2q", content.name), *content.token_ids]\n',
        '        numbers += [*unpack("2q", content.name), *([0] * len(content.token_ids))]\n',
        f"{_MESSAGES}::test_an_order_arrives_as_it_was",
    ),
    Mutant(
        "soft cuts are told to nobody",
        f"{_EXECUTION}/ranks/messages.py",
        "block_size, asked, *counts]",
        "block_size, asked, counts[0], 0, *counts[2:]]",
        f"{_MESSAGES}::test_an_order_arrives_as_it_was",
    ),
    Mutant(
        "every token stands at its table's beginning",
        f"{_EXECUTION}/batch.py",
        "        positions += range(start, end)\n",
        "        positions += range(end - start)\n",
        f"{_OF_EXECUTION}/test_batch.py::test_every_token_stands_where_its_table_says",
    ),
    Mutant(
        "a draft counts that was sampled without a mask",
        "src/quire/execution/sampling/choosing.py",
        "known = [*drawn[:sure], *[None] * (rows - sure)]",
        "known = drawn[:rows]",
        "tests/torch/engine/test_sitting_out.py::test_no_bit_of_a_text_changes",
    ),
    Mutant(
        "beams are compared with others than before where one is late",
        "src/quire/execution/sampling/choosing.py",
        "        for asking in self._asking if late else ():",
        "        for asking in ():",
        "tests/torch/engine/test_sitting_out.py::test_no_bit_of_a_text_changes",
    ),
    Mutant(
        "a sequence that pads a batch on a GPU has a slot for its state",
        f"{_EXECUTION}/gpu/inputs.py",
        "arrays[-_OF_STATES][header.seqs :] = -1",
        "arrays[-_OF_STATES][header.seqs :] = 0",
        f"{_OF_EXECUTION}/gpu/test_inputs.py::{_NOWHERE}",
    ),
    Mutant(
        "a state on a GPU sees drafts before they are confirmed",
        _RECURRENCE,
        "known = end - _of(drafts, seq)",
        "known = end",
        f"{_OF_RECURRENCE}::test_bits_do_not_depend_on_how_texts_are_cut_nor_on_drafts",
    ),
    Mutant(
        "a text's first token on a GPU goes on from what the slot has left",
        _RECURRENCE,
        "tile = tl.load(place, mask=mask & (fresh == 0), other=0.0)",
        "tile = tl.load(place, mask=mask, other=0.0)",
        f"{_OF_RECURRENCE}::test_results",
    ),
    Mutant(
        "what pads a batch on a GPU is read out as if it were somebody's",
        _RECURRENCE,
        "there = tl.load(slots + tl.load(owners + token)) >= 0",
        "there = tl.load(slots + tl.load(owners + token)) >= -1",
        f"{_OF_RECURRENCE}::test_sequences_that_pad_a_batch_change_nothing",
    ),
)

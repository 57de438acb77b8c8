"""A checkpoint becomes a decoder, and ranks' parts of it."""

from __future__ import annotations

from mutants.mutant import Mutant

_MODELS, _OF_MODELS = "src/quire/models", "tests/torch/models"
_SHARDS, _ROUNDING = f"{_OF_MODELS}/test_shards.py", f"{_OF_MODELS}/test_rounding.py"
_FILES, _READER = f"{_OF_MODELS}/test_checkpoint_files.py", "tests/pure/models/shape/test_reader.py"
_STORED = f"{_OF_MODELS}/test_stored_checkpoints.py"
_GENERAL = f"{_OF_MODELS}/test_general_path.py"
_HYBRIDS = f"{_OF_MODELS}/test_hybrids.py"

MUTANTS = (
    Mutant(
        "a hidden file counts as a checkpoint",
        f"{_MODELS}/checkpoint_files.py",
        r'r"(adapter|consolidated|\.).*"',
        r'r"(adapter|consolidated).*"',
        f"{_FILES}::test_what_is_found",
    ),
    Mutant(
        "of numbered files those that there are will do",
        f"{_MODELS}/checkpoint_files.py",
        "        if missing or len(have) != total:\n",
        "        if False:\n",
        f"{_FILES}::test_what_is_not_found_is_said",
    ),
    Mutant(
        "an index leads out of its directory",
        f"{_MODELS}/checkpoint_files.py",
        'file.is_absolute() or ".." in file.parts or',
        "",
        f"{_OF_MODELS}/test_damaged_directories.py::test_an_index_stays_in_its_directory",
    ),
    Mutant(
        "a window of Qwen's counts though it is not used",
        f"{_MODELS}/shape/windows.py",
        'if not asked and not fields.get("use_sliding_window", bool, False):',
        "if False:",
        f"{_READER}::test_a_window_of_qwen_counts_where_it_is_used",
    ),
    Mutant(
        "a window counts in layers before max_window_layers",
        f"{_MODELS}/shape/windows.py",
        "window if layer >= first else None",
        "window if layer < first else None",
        f"{_READER}::test_a_window_of_qwen_counts_where_it_is_used",
    ),
    Mutant(
        "Gemma's windows are in every layer",
        f"{_MODELS}/shape/windows.py",
        "None if every and (layer + 1) % every == 0 else window",
        "window",
        f"{_READER}::test_windows_of_gemma_leave_out_every_so_many_layers",
    ),
    Mutant(
        "the first group that matches wins, whatever its targets",
        f"{_MODELS}/shape/stored.py",
        "return found[min(found)] if found else None",
        "return next(iter(found.values()), None)",
        "tests/pure/models/shape/test_stored.py::test_of_targets_that_overlap_the_nearest_counts",
    ),
    Mutant(
        "an ignore list's patterns are taken for names",
        f"{_MODELS}/shape/stored.py",
        '    if target.startswith("re:"):\n',
        "    if False:\n",
        f"{_STORED}::test_names_and_patterns_choose",
    ),
    Mutant(
        "a GPTQ zero is one off in one of the two formats",
        f"{_MODELS}/shape/stored.py",
        'zero_offset=int(form == "gptq")',
        "zero_offset=1",
        f"{_STORED}::test_a_weight_is_what_its_format_says",
    ),
    Mutant(
        "inputs of `desc_act` stay in their order",
        f"{_MODELS}/linear/checkpoints/gptq.py",
        "codes = codes if order is None else codes[:, order]",
        "codes = codes",
        f"{_STORED}::test_a_weight_is_what_its_format_says",
    ),
    Mutant(
        "scales of a block are those of the first",
        f"{_MODELS}/linear/checkpoints/fp8.py",
        "across[block_of[some]]",
        "across[block_of[some] * 0]",
        f"{_STORED}::test_a_weight_is_what_its_format_says",
    ),
    Mutant(
        "MXFP4's codes have the scales of their neighbours",
        f"{_MODELS}/linear/checkpoints/mxfp4.py",
        "int() - 128",
        "int() - 127",
        f"{_OF_MODELS}/test_mxfp4.py::test_the_numbers_are_those_of_transformers",
    ),
    Mutant(
        "scales of int4 are not fitted",
        f"{_MODELS}/linear/rounding.py",
        "_FITS = 1",
        "_FITS = 0",
        f"{_ROUNDING}::test_scales_lose_less_than_the_largest_weights_would",
    ),
    Mutant(
        "a group is rounded by another's importance",
        f"{_MODELS}/linear/rounding.py",
        "return by_group[:, torch.arange(first, first + shape[1]) % by_group.shape[1]]",
        "return by_group[:, torch.arange(first, first + shape[1]) // len(by_group) % 2]",
        f"{_ROUNDING}::test_what_large_inputs_multiply_loses_less",
    ),
    Mutant(
        "inputs of a projection are not observed",
        f"{_MODELS}/loader.py",
        "if linears.weighs_inputs and family.read(config).mixture is None:",
        "if False:",
        f"{_OF_MODELS}/test_quantization.py::test_weights_are_rounded_and_nothing_else",
    ),
    Mutant(
        "attention has four bits as well",
        f"{_MODELS}/linear/rounding.py",
        "form = Format.int6 if attention else Format.int4",
        "form = Format.int4",
        f"{_ROUNDING}::test_attention_has_more_bits_and_odd_inputs_int8",
    ),
    Mutant(
        "keys of the wrong heads where ranks share some",
        f"{_MODELS}/shard.py",
        "first = self.rank * count // self.size",
        "first = self.rank % count",
        f"{_SHARDS}::test_every_family",
    ),
    Mutant(
        "gate and up are not divided apart",
        f"{_MODELS}/dividing.py",
        "        first += count\n    return rows\n",
        "    return rows\n",
        f"{_SHARDS}::test_every_family",
    ),
    Mutant(
        "columns of the first rank on all",
        f"{_MODELS}/dividing.py",
        "slice(held.start * width, held.stop * width)",
        "slice(0, (held.stop - held.start) * width)",
        f"{_SHARDS}::test_every_family",
    ),
    Mutant(
        "a vocabulary that does not divide loses its end",
        f"{_MODELS}/shard.py",
        "return range(first, first + each + (self.rank < more))",
        "return range(first, first + each)",
        f"{_SHARDS}::test_vocabularies_and_heads_are_held_in_order",
    ),
    Mutant(
        "a rank's part begins where its group does",
        f"{_MODELS}/parts.py",
        "return slice(columns.start - outer.start, columns.stop - outer.start)",
        "return slice(0, columns.stop - columns.start)",
        f"{_OF_MODELS}/test_shards_of_rounded_weights.py::test_parts_of_a_checkpoints_weight",
    ),
    Mutant(
        "attention of its own is found out after weights are read",
        f"{_MODELS}/transformers_loading.py",
        ' or not hasattr(code, "ALL_ATTENTION_FUNCTIONS")',
        "",
        f"{_OF_MODELS}/test_family_records.py::test_what_nobody_computes_is_refused_before_weights_are_read",
    ),
    Mutant(
        "attention in transformers is compared at the first positions alone",
        f"{_MODELS}/selfcheck.py",
        "batch = replace(batch, positions=batch.positions + max(first, 0))",
        "batch = replace(batch, positions=batch.positions)",
        f"{_GENERAL}::test_attention_that_is_other_at_far_positions_stays",
    ),
    Mutant(
        "a step with adapters goes through whole layers of transformers' models, without them",
        f"{_MODELS}/transformers_layers.py",
        "if fused is None or self.mlp.running.adapted:",
        "if fused is None:",
        f"{_GENERAL}::test_adapters",
    ),
    Mutant(
        "a linear layer in transformers is packed though its weight is used in other ways",
        f"{_MODELS}/transformers_products.py",
        '        self.notes.looked_at.add(id(self.layer))\n        return self.layer._parameters["weight"]',
        '        return self.layer._parameters["weight"]',
        f"{_GENERAL}::test_a_layer_whose_weight_is_used_in_other_ways_stays",
    ),
    Mutant(
        "weights of linear layers are read before they are packed",
        f"{_MODELS}/transformers_loading.py",
        "                    self._names.add(known[one])",
        "                    pass",
        f"{_GENERAL}::test_weights_stay_in_their_files_until_they_are_packed",
    ),
    Mutant(
        "a table of embeddings counts among what a token reads",
        f"{_MODELS}/decoder.py",
        "table = 0 if decoder.embed is decoder.head else decoder.embed.nbytes",
        "table = 0",
        f"{_OF_MODELS}/test_experts.py::test_what_a_token_reads",
    ),
    Mutant(
        "heads of one key are neighbours in GGUF files too",
        f"{_MODELS}/hybrids.py",
        "    recurrent = RecurrentPlan(shape, _QWEN, plan.norm.eps, tiled=tiled)\n",
        "    recurrent = RecurrentPlan(shape, _QWEN, plan.norm.eps)\n",
        f"{_HYBRIDS}::test_gguf_files",
    ),
    Mutant(
        "a layer with two mixers gives each its own residual",
        f"{_MODELS}/building.py",
        "        beside = Layer(state, around, attention, Norms(scale=factors.attention), parallel=True)",
        "        beside = Layer(state, around, attention, Norms(scale=factors.attention))",
        f"{_OF_MODELS}/test_families.py::test_logits[falcon_h1]",
    ),
    Mutant(
        "decays are rounded to the model's type before they are used",
        f"{_MODELS}/weights.py",
        "dtype=torch.float32 if exact else None",
        "dtype=None",
        f"{_HYBRIDS}::test_decays_are_as_they_are_stored",
    ),
    Mutant(
        "ranks divide what they cannot",
        f"{_MODELS}/shard.py",
        "if self.has_states and size > 1:",
        "if False:",
        f"{_HYBRIDS}::test_ranks_and_windows_are_refused",
    ),
    Mutant(
        "a state that a text begins with is what its slot held",
        "src/quire/kernels/reference_recurrence.py",
        "        if run.begins:\n",
        "        if False:\n",
        "tests/torch/kernels/test_recurrence.py::test_the_reference_computes_the_definition",
    ),
)

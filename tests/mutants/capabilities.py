"""Speculation, grammar and adapters."""

from __future__ import annotations

from mutants.mutant import Mutant

_SPECULATION, _OF_SPECULATION = (
    "src/quire/capabilities/speculation",
    "tests/pure/capabilities/speculation",
)
_SERVED, _OWN = f"{_OF_SPECULATION}/test_served_texts.py", f"{_OF_SPECULATION}/test_own_texts.py"
_PREDICTION = f"{_OF_SPECULATION}/test_prediction.py"
_WHOLE = f"{_OF_SPECULATION}/test_speculation.py"

MUTANTS = (
    Mutant(
        "an index is not brought up to date where its text was cut",
        f"{_SPECULATION}/own_texts.py",
        "if known is None or known.token_ids is not sequence.token_ids:",
        "if known is None:",
        f"{_OWN}::test_drafts_are_those_of_brute_force",
    ),
    Mutant(
        "forks share an index",
        f"{_SPECULATION}/own_texts.py",
        "self._known[sibling].text.copy()",
        "self._known[sibling].text",
        f"{_OWN}::test_drafts_are_those_of_brute_force",
    ),
    Mutant(
        "what has ended keeps its memory",
        f"{_SPECULATION}/own_texts.py",
        "        known = self._known.pop(seq_id, None)\n",
        "        known = self._known.get(seq_id)\n",
        f"{_OWN}::test_memory_is_that_of_what_lives",
    ),
    Mutant(
        "outputs are found under another salt",
        f"{_SPECULATION}/suffix.py",
        "hashlib.blake2b(request.root_hash, digest_size=16)",
        "hashlib.blake2b(b'', digest_size=16)",
        f"{_SERVED}::test_only_the_same_salt_finds_them",
    ),
    Mutant(
        "an output's last step is not learned",
        f"{_SPECULATION}/suffix.py",
        "            volume.end(token_ids, _LAST)\n",
        "            pass\n",
        f"{_SERVED}::test_the_last_step_of_an_output_is_learned_too",
    ),
    Mutant(
        "an output's beginning is not found",
        f"{_SPECULATION}/suffix.py",
        "max(0, first - _LEAD)",
        "first",
        f"{_SERVED}::test_outputs_help_each_other_as_they_grow_and_from_their_beginning",
    ),
    Mutant(
        "the own text is always heard before those that were served",
        f"{_SPECULATION}/suffix.py",
        "if guess is None or (served is not None and served[3] > guess[3]):",
        "if guess is None:",
        f"{_SERVED}::test_of_the_own_text_and_those_served_the_more_hopeful_is_told",
    ),
    Mutant(
        "who disagreed is heard on",
        f"{_SPECULATION}/acceptance.py",
        "            own.note(place, chances[number], is_right, recent)\n",
        "",
        f"{_WHOLE}::test_each_sequence_by_its_own_acceptance",
    ),
    Mutant(
        "drafters that lie are listened to",
        f"{_SPECULATION}/acceptance.py",
        "number < right\n",
        "True\n",
        f"{_WHOLE}::test_who_lies_is_no_longer_listened_to",
    ),
    Mutant(
        "a draft is worth its own chance alone",
        f"{_SPECULATION}/acceptance.py",
        "            together *= min(_SURE, chance * share)\n",
        "            together = min(_SURE, chance * share)\n",
        f"{_WHOLE}::test_chances_follow_what_has_become_of_drafts",
    ),
    Mutant(
        "all drafts are taken that make a step worth more than none",
        f"{_SPECULATION}/plan.py",
        "            most, place, best = tokens / (taken + offer.seconds), number, tokens\n",
        "            place, best = number, tokens\n",
        f"{_WHOLE}::test_what_is_chosen_is_the_fastest_of_all_there_is",
    ),
    Mutant(
        "rows cost nothing",
        f"{_SPECULATION}/plan.py",
        "times = [plain, *costs.several(rows + 1, len(ranked) - 1)]",
        "times = [plain] * len(ranked)",
        f"{_WHOLE}::test_where_arithmetic_binds_nobody_is",
    ),
    Mutant(
        "without speculation all are drafted for",
        f"{_SPECULATION}/speculation.py",
        "self._most, self._predicted_only = most, predicted_only",
        "self._most, self._predicted_only = most, False",
        f"{_WHOLE}::test_only_those_with_a_prediction_where_nobody_else_is_drafted_for",
    ),
    Mutant(
        "references are followed however far they lead",
        "src/quire/capabilities/grammar/subschemas.py",
        "_MOST_LINKED = 1_000",
        "_MOST_LINKED = 100_000",
        "tests/fuzz/test_fuzz.py::test_what_has_failed_once_is_bounded",
    ),
)

"""Text to tokens and back, and what a model's text means."""

from __future__ import annotations

from mutants.mutant import Mutant

_TEXT, _DIALECT, _OF_TEXT = "src/quire/text", "src/quire/text/dialect", "tests/pure/text"
_OF_DIALECT = f"{_OF_TEXT}/dialect"
_PROOFS = f"{_OF_DIALECT}/test_proofs.py"
_STOPS, _TOKENS = f"{_OF_TEXT}/test_stop_strings.py", f"{_OF_TEXT}/test_token_texts.py"
_BEGUN, _MENDING = f"{_OF_DIALECT}/test_begun_answers.py", f"{_OF_DIALECT}/test_mending.py"
_PIECES = f"{_OF_DIALECT}/test_pieces.py"

MUTANTS = (
    Mutant(
        "what Rust code gives up at passes by whoever catches errors",
        f"{_TEXT}/tokenizer.py",
        "        if type(error).__name__ != _PANIC:\n",
        "        if True:\n",
        f"{_OF_TEXT}/test_encoder.py::test_what_a_tokenizer_gives_up_at_ends_one_request",
    ),
    Mutant(
        "dropping some of a long text copies all that is left, each time",
        f"{_DIALECT}/reader.py",
        "_PIECE = 512 ",
        "_PIECE = 2**30 ",
        f"{_OF_DIALECT}/test_linear.py::test_marks_without_end[openai]",
    ),
    Mutant(
        "each of many broken lists of calls is read to the end",
        f"{_DIALECT}/pythonic.py",
        "        calls.wasted += reader.at - start\n",
        "        pass\n",
        f"{_OF_DIALECT}/test_linear.py::test_marks_without_end[pythonic]",
    ),
    Mutant(
        "a stop string inside another is missed",
        f"{_TEXT}/stop_strings.py",
        "                    self.complete[node] = self.complete[shorter]\n",
        "                    pass\n",
        f"{_STOPS}::test_a_stop_string_inside_another_ends_the_text_first",
    ),
    Mutant(
        "a text that leaves a stop string falls back to the root",
        f"{_TEXT}/stop_strings.py",
        "            node = self._shorter[node]\n        return found",
        "            node = self.ROOT\n        return found",
        f"{_STOPS}::test_text_ends_at_the_first_complete_stop_string_however_it_comes",
    ),
    Mutant(
        "more is held back than need be",
        f"{_TEXT}/stop_strings.py",
        "return self._release(len(self._held) - automaton.lengths[node])",
        "return self._release(max(0, len(self._held) - max(automaton.lengths)))",
        f"{_STOPS}::test_text_that_cannot_be_a_stop_string_is_not_held_back",
    ),
    Mutant(
        "of stop strings that end together the shortest counts",
        f"{_TEXT}/stop_strings.py",
        "                if self.complete[node] is None:\n",
        "                if self.complete[shorter] is not None:\n",
        f"{_STOPS}::test_of_those_that_end_together_the_longest_counts",
    ),
    Mutant(
        "a stop string that is complete too early ends the text",
        f"{_TEXT}/stop_strings.py",
        "if may_end and (matched",
        "if (matched",
        f"{_STOPS}::test_what_is_complete_too_early_is_text_and_what_only_begins_there_ends_it",
    ),
    Mutant(
        "the prompt does not count as a text's beginning",
        f"{_TEXT}/detokenizer.py",
        '            self._stripped(own.bytes[token_id].decode(errors="replace"))\n',
        "            break\n",
        f"{_TOKENS}::test_what_comes_is_the_text_of_all_without_that_of_the_prompt",
    ),
    Mutant(
        "a character that the prompt begins comes in two",
        f"{_TEXT}/detokenizer.py",
        "        self._decoder.decode(tail)\n",
        "        pass\n",
        f"{_TOKENS}::test_a_character_that_the_prompt_begins_comes_whole",
    ),
    Mutant(
        "a text that never becomes one is kept for ever",
        f"{_TEXT}/detokenizer.py",
        " and len(self._window) - self._emitted < _MOST_HELD",
        "",
        f"{_TOKENS}::test_a_text_that_never_becomes_one_is_not_kept_for_ever",
    ),
    Mutant(
        "half a character is shown",
        f"{_TEXT}/detokenizer.py",
        "if len(after) <= len(before) or waits:",
        "if len(after) <= len(before):",
        f"{_TOKENS}::test_so_it_does_where_tokens_depend_on_others",
    ),
    # -- dialects ------------------------------------------------------------------------------
    Mutant(
        "a mark at the end of a piece is not waited for",
        f"{_DIALECT}/reader.py",
        "if not self.ended and mark.startswith(text[at:]):",
        "if False:",
        f"{_PIECES}::test_the_pieces_add_up_to_the_whole",
    ),
    Mutant(
        "a broken call loses its mark",
        f"{_DIALECT}/reader.py",
        "                reader.content(space + mark)\n",
        "                reader.content(space)\n",
        f"{_OF_DIALECT}/test_dialects.py::test_what_is_no_call_is_content_to_the_letter",
    ),
    Mutant(
        "a call in mid-reasoning is lost",
        f"{_DIALECT}/reader.py",
        "stops = (marks.end, *(self.form.opens if self.form else ()))",
        "stops = (marks.end,)",
        f"{_MENDING}::test_a_call_in_mid_thought_is_made",
    ),
    Mutant(
        "a thought about a call is a call",
        f"{_DIALECT}/reader.py",
        "only_known=True, in_thought=True",
        "only_known=True",
        f"{_MENDING}::test_a_thought_about_a_call_is_no_call",
    ),
    Mutant(
        "bare text calls what is no tool",
        f"{_DIALECT}/reader.py",
        'if not (yield from self._call(reader, calls, "", only_known=True)):',
        'if not (yield from self._call(reader, calls, "", only_known=False)):',
        f"{_OF_DIALECT}/test_dialects.py::test_what_is_no_call_is_content_to_the_letter",
    ),
    Mutant(
        "a begun answer may open reasoning",
        f"{_DIALECT}/reader.py",
        "return self.reasons or not self.amid",
        "return True",
        f"{_BEGUN}::test_a_text_is_read_from_where_it_stands",
    ),
    Mutant(
        "a thought that has been closed goes on",
        f"{_DIALECT}/reader.py",
        "        if self.end in text:\n            opened = False\n",
        "",
        f"{_BEGUN}::test_where_an_answer_stands",
    ),
    Mutant(
        "a dialect that a template mentions counts more than one that it writes",
        f"{_DIALECT}/proof.py",
        "    if not written.one:\n",
        "    if not written.one or ranked[0].sign in template:\n",
        f"{_PROOFS}::test_what_a_template_writes_counts_more_than_what_it_mentions",
    ),
    Mutant(
        "the first dialect that reads a call is taken",
        f"{_DIALECT}/proof.py",
        "return min(left, key=left.__getitem__)",
        "return next(iter(left))",
        f"{_PROOFS}::test_of_two_that_read_a_call_the_one_that_knows_its_marks_is_taken",
    ),
    Mutant(
        "a form is made without being tried",
        f"{_DIALECT}/proof.py",
        "if shown is not None and written.left_by(found := made(shown)) is not None:",
        "if shown is not None and (found := made(shown)):",
        f"{_PROOFS}::test_what_is_made_of_one_call_has_to_read_two",
    ),
    Mutant(
        "a mark that is written twice is a part of what follows",
        f"{_DIALECT}/one_by_one.py",
        "while found and (yield from reader.take(mark)):",
        "while False:",
        f"{_OF_DIALECT}/test_slips.py::test_calls_with_slips",
    ),
    Mutant(
        "braces in a text as JSON has it are brackets",
        f"{_DIALECT}/notation.py",
        "if _begins(reader) and not (yield from _pass_quotes(reader)):",
        "if False:",
        f"{_OF_DIALECT}/test_slips.py::test_calls_with_slips",
    ),
    Mutant(
        "the tag of a value is not read",
        f"{_DIALECT}/one_by_one.py",
        "types = (yield from self._tag(reader)) or _types_of(calls, name, key)",
        "types = _types_of(calls, name, key)",
        f"{_PROOFS}::test_calls_come_back_in_any_pieces",
    ),
    Mutant(
        "marks of reasoning are those that a template mentions",
        f"{_DIALECT}/proof.py",
        "end = after.partition(_CONTENT)[0] if thought else template",
        "end = template",
        f"{_PROOFS}::test_marks_of_reasoning_are_those_around_a_thought_that_is_written",
    ),
    Mutant(
        "an integer beside texts loses its bounds",
        f"{_DIALECT}/schemas.py",
        'kind = "number" if type_ == "integer" else type_',
        "kind = type_",
        f"{_OF_DIALECT}/test_grammar.py::test_a_bound_of_numbers_holds_beside_texts",
    ),
    Mutant(
        "classes of an expression hold control characters, and so quotes",
        f"{_DIALECT}/expressions.py",
        'return f"[{inner}&&[^{_ranges(_UNWRITTEN)}]]"',
        "return inner",
        "tests/pure/capabilities/grammar/test_expressions.py::test_what_is_written_is_json_and_fits",
    ),
    Mutant(
        "an expression of a model's files is looked for without an end",
        f"{_DIALECT}/declared.py",
        "        timeout = _LONGEST_LOOK\n",
        "        timeout = 3 * _LONGEST_LOOK + 60\n",
        "tests/torch/engine/test_declared.py::test_an_expression_of_the_files_has_an_end",
    ),
    Mutant(
        "a mark that comes in two pieces is passed over",
        f"{_DIALECT}/reader.py",
        "seen = max(start, len(self.text) - len(mark) + 1)",
        "seen = len(self.text)",
        "tests/fuzz/test_fuzz.py::test_what_clients_shape_crashes_nothing_and_comes_out_right",
    ),
    Mutant(
        "a range is told that is not checked",
        f"{_TEXT}/params/parameters.py",
        "        if not low <= value <= high:  # exact",
        "        if not low <= value:  # exact",
        f"{_OF_TEXT}/params/test_parameters.py::test_its_range_is_where_it_is_told",
    ),
    Mutant(
        "None passes where it may not",
        f"{_TEXT}/params/sampling_params.py",
        "not (given is None and optional)",
        "given is not None",
        f"{_OF_TEXT}/params/test_parameters.py::test_none_is_allowed_where_its_type_says_so",
    ),
    Mutant(
        "a number becomes a float before it is compared",
        f"{_TEXT}/params/parameters.py",
        "        if not low <= value <= high:  # exact",
        "        value = float(value)\n        if not low <= value <= high:  # exact",
        f"{_OF_TEXT}/params/test_sampling_params.py::test_numbers_that_no_library_can_hold_are_refused",
    ),
    Mutant(
        "what outputs multiply is bounded for one of them",
        f"{_TEXT}/params/sampling_params.py",
        "most = MAX_LOGPROBS_AT_ONCE // width",
        "most = MAX_LOGPROBS_AT_ONCE",
        f"{_OF_TEXT}/params/test_sampling_params.py::test_what_outputs_multiply_is_bounded_for_all_of_them",
    ),
)

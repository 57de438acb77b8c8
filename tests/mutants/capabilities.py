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
_SESSIONS = "src/quire/capabilities/sessions.py"
_OF_SESSIONS = "tests/pure/capabilities/test_sessions.py"
_BOX, _GRAMMAR = "src/quire/capabilities/box", "src/quire/capabilities/grammar"
_OF_BOX = "tests/pure/capabilities/box/test_box.py"
_BOXED = "tests/pure/capabilities/grammar/test_boxed.py"
_MISSES, _OF_MISSES = "src/quire/capabilities/misses.py", "tests/pure/capabilities/test_misses.py"
_SITTING = "tests/torch/engine/test_sitting_out.py"
_STATEFUL = "tests/torch/engine/test_drafts_beside_states.py"
_RIGHT = f"{_STATEFUL}::test_no_bit_changes_and_it_is_right_if_it_is_the_target"
_LIVES = "tests/pure/engine/test_lives.py::test_every_life_is_well"

MUTANTS = (
    Mutant(
        "a draft model's states see drafts beyond the end of a text",
        "src/quire/capabilities/speculation/behind.py",
        "return [one if one.seq_id in step.within else _with_drafts(one, 0) for one in due]",
        "return [_with_drafts(one, 0) for one in due]",
        f"{_STATEFUL}::test_a_turn_that_ends_within_its_drafts_leaves_the_states_at_its_end",
    ),
    Mutant(
        "a text that was ended after right drafts goes on without a draft model's states of them",
        "src/quire/core/scheduling/decoding.py",
        "            if over:\n                self._within.append(branch.seq_id)",
        "            self._within.append(branch.seq_id)",
        "tests/pure/engine/test_lives.py::test_lives_that_were_not_well_are[54002099]",
    ),
    Mutant(
        "a draft model overwrites others' blocks where a session goes on after a cut",
        "src/quire/capabilities/speculation/behind.py",
        "going_on.pop(opened.seq_id, None)",
        "going_on.get(opened.seq_id, None)",
        "tests/pure/engine/test_lives.py::test_lives_that_were_not_well_are[56024260]",
    ),
    Mutant(
        "a window moves on before a draft model's states have seen right drafts",
        "src/quire/capabilities/speculation/behind.py",
        "then.num_dropped == now.num_dropped",
        "then.num_dropped <= now.num_dropped",
        "tests/pure/capabilities/speculation/test_behind.py"
        "::test_it_is_computed_while_its_window_is_there",
    ),
    Mutant(
        "a session rests with drafts of which a draft model's states may have seen too many",
        "src/quire/core/scheduling/decoding.py",
        "rests = over and request.request_id in self._sessions",
        "rests = False",
        "tests/pure/engine/test_lives.py::test_lives_that_were_not_well_are[5490]",
    ),
    Mutant(
        "a draft model has yet to compute what is moved",
        "src/quire/capabilities/speculation/behind.py",
        "going_on = {} if step.moves else {chunk",
        "going_on = {chunk",
        f"{_LIVES}[0]",
    ),
    Mutant(
        "a draft model's states see drafts of others before they are confirmed",
        "src/quire/capabilities/speculation/behind.py",
        "chunk = _with_drafts(chunk, len(token_ids) - settled)",
        "chunk = _with_drafts(chunk, 0)",
        f"{_STATEFUL}::test_states_of_each_kind_come_back[lfm2]",
    ),
    Mutant(
        "a draft model's states see its drafts before they are confirmed",
        "src/quire/capabilities/speculation/behind.py",
        "return _with_drafts(_part(chunk, token_ids, settled), len(token_ids) - settled)",
        "return _part(chunk, token_ids, settled)",
        _RIGHT,
    ),
    Mutant(
        "a draft model's states never see drafts that were right",
        "src/quire/capabilities/speculation/behind.py",
        "first = settled if self.keeps_states else len(chunk.token_ids) - 1",
        "first = len(chunk.token_ids) - 1",
        _RIGHT,
    ),
    Mutant(
        "a head of an adapter's own is everybody's",
        "src/quire/execution/forward.py",
        "any(first <= row < last for first, last in ranges)",
        "True",
        "tests/torch/engine/test_adapters.py::test_embeddings_and_heads_of_their_own[False]",
    ),
    Mutant(
        "embeddings of adapters' own are left out",
        "src/quire/models/decoder.py",
        "if tables.rows is not None:",
        "if False:",
        "tests/torch/engine/test_adapters.py::test_embeddings_and_heads_of_their_own[False]",
    ),
    Mutant(
        "adapters' tables may take all memory",
        "src/quire/capabilities/adapters/reading.py",
        "if source.table_bytes > room:",
        "if False:",
        "tests/torch/engine/test_adapters.py::test_tables_larger_than_those_at_the_start_are_refused",
    ),
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
        "an idle session expires a moment too late",
        _SESSIONS,
        "self._clock() - session.idle_since >= timeout",
        "self._clock() - session.idle_since > timeout",
        f"{_OF_SESSIONS}::test_an_idle_session_is_gone_once_its_time_is_over",
    ),
    Mutant(
        "an expired session is found until it is swept",
        _SESSIONS,
        "        if session is None or self._has_expired(session):\n",
        "        if session is None:\n",
        f"{_OF_SESSIONS}::test_an_idle_session_is_gone_once_its_time_is_over",
    ),
    Mutant(
        "an expired session is never swept",
        _SESSIONS,
        "for session in [one for one in self._sessions.values() if self._has_expired(one)]:",
        "for session in ():",
        f"{_OF_SESSIONS}::test_whatever_is_asked_next_closes_it",
    ),
    Mutant(
        "a busy session expires",
        _SESSIONS,
        "        self.idle_since = math.inf\n",
        "",
        f"{_OF_SESSIONS}::test_a_busy_session_never_expires_and_is_idle_from_its_turn_s_end",
    ),
    Mutant(
        "an aborted turn leaves its session busy",
        _SESSIONS,
        "        self.note(SessionVerb.END, request_id)\n",
        "",
        f"{_OF_SESSIONS}::test_a_busy_session_never_expires_and_is_idle_from_its_turn_s_end",
    ),
    Mutant(
        "a turn has no salt",
        "src/quire/engine/input_processor.py",
        "            cache_salt=own.cache_salt,\n",
        "",
        f"{_OF_SESSIONS}::test_a_turn_has_its_session_s_salt",
    ),
    Mutant(
        "what waits for a turn is unbounded",
        _SESSIONS,
        "if session.num_input + more > _MOST_INPUT:",
        "if False:",
        f"{_OF_SESSIONS}::test_what_waits_for_a_turn_is_bounded_under_a_window",
    ),
    Mutant(
        "a history is shortened though its turn is refused",
        _SESSIONS,
        "        return self._kept(session, last_n + session.num_input)\n",
        "        session.restart(self._kept(session, last_n + session.num_input))\n"
        "        return session.history\n",
        f"{_OF_SESSIONS}::test_without_a_window_a_session_that_recomputes_never_ends",
    ),
    Mutant(
        "a hook that a capability overrides is not called",
        "src/quire/core/scheduling/capability.py",
        "if getattr(type(one), name) is not hook",
        "if name in type(one).__dict__",
        "tests/pure/engine/test_capabilities.py::test_what_a_capability_inherits_is_called_too",
    ),
    Mutant(
        "references are followed however far they lead",
        "src/quire/capabilities/grammar/subschemas.py",
        "_MOST_LINKED = 1_000",
        "_MOST_LINKED = 100_000",
        "tests/fuzz/test_fuzz.py::test_what_has_failed_once_is_bounded",
    ),
    Mutant(
        "what is negated is widened before it is turned round",
        "src/quire/capabilities/grammar/plain_words.py",
        "edited(in_plain_words(schema), [partial(_without, left_out)])",
        "in_plain_words(edited(schema, [partial(_without, left_out)]))",
        "tests/pure/capabilities/grammar/test_plain_words.py"
        "::test_what_is_kept_to_exactly_is_not_widened",
    ),
    Mutant(
        "a part of several schemas is closed by itself",
        f"{_GRAMMAR}/closing.py",
        "id(schema) in self._alone and id(schema) not in self._together",
        "id(schema) in self._alone",
        "tests/pure/capabilities/grammar/test_closing.py::test_models_cannot_invent_properties",
    ),
    Mutant(
        "what a schema refers to is fetched",
        f"{_GRAMMAR}/misfits.py",
        "(schema, registry=nowhere)",
        "(schema)",
        "tests/pure/capabilities/grammar/test_misfits.py"
        "::test_nothing_is_fetched_and_what_is_no_schema_is_told",
    ),
    Mutant(
        "what was widened is not checked in the end",
        "src/quire/http/widened.py",
        "            for one, what, text in found:\n",
        "            for one, what, text in ():\n",
        "tests/torch/engine/test_called_tools.py"
        "::test_a_schema_that_is_not_strict_is_widened_and_the_answer_says_so",
    ),
    Mutant(
        "what a forced call has of a mark when it is cut is content",
        "src/quire/http/chats/conversation.py",
        "return not self._only_calls",
        "return True",
        "tests/pure/text/dialect/test_forced_calls.py::test_a_call_that_is_cut_leaks_no_mark",
    ),
    Mutant(
        "what may follow one more token is asked of the token before it",
        f"{_GRAMMAR}/service.py",
        "places = ((kept + 1, row),)",
        "places = ((kept, row),)",
        "tests/pure/capabilities/grammar/test_boxed.py"
        "::test_masks_are_those_of_a_guide_in_this_process",
    ),
    Mutant(
        "a guide that takes back tokens is asked as if it had them",
        f"{_GRAMMAR}/service.py",
        "        if kept < len(tokens):\n",
        "        if kept < 0:\n",
        "tests/pure/capabilities/grammar/test_boxed.py"
        "::test_masks_are_those_of_a_guide_in_this_process",
    ),
    Mutant(
        "a worker may take any memory",
        f"{_BOX}/inside.py",
        "        _limit(resource.RLIMIT_AS, pages",
        "        (resource.RLIMIT_AS, pages",
        f"{_OF_BOX}::test_what_goes_wrong_is_named_and_the_next_call_has_a_new_worker",
    ),
    Mutant(
        "a worker that takes too long goes on",
        f"{_BOX}/box.py",
        "        self.end()\n        raise BoxBroken(allowed.why())\n",
        "        raise BoxBroken(allowed.why())\n",
        f"{_OF_BOX}::test_who_is_kept_from_computing_has_not_taken_long",
    ),
    Mutant(
        "a long call keeps the cores",
        f"{_BOX}/box.py",
        "        self._leave_the_cores()\n        while",
        "        while",
        f"{_OF_BOX}::test_a_long_call_leaves_the_cores_to_others_and_no_further_one_does",
    ),
    Mutant(
        "a long call keeps its turn",
        f"{_BOX}/box.py",
        "                return worker.receive(min(seconds, _LONG), gives)\n",
        "                return worker.receive(seconds, gives)\n",
        f"{_OF_BOX}::test_long_calls_wait_for_each_other_and_keep_no_short_one_waiting",
    ),
    Mutant(
        "another worker is not given whole outputs",
        f"{_GRAMMAR}/boxed.py",
        "self._number, 0, guide.rules.form",
        "self._number, guide.kept, guide.rules.form",
        f"{_SITTING}::test_a_worker_that_is_killed_is_replaced_and_nobody_notices",
    ),
    Mutant(
        "whose guide a worker died of twice goes on",
        f"{_GRAMMAR}/boxed.py",
        "        if self._suspected > 1:",
        "        if self._suspected > 2:",
        f"{_SITTING}::test_whose_guide_a_worker_dies_of_ends_and_nobody_else",
    ),
    Mutant(
        "a guide that goes back keeps the masks of what was there",
        f"{_GRAMMAR}/boxed.py",
        "        self.kept = min(self.kept, length)\n",
        "        self.kept = max(self.kept, 0)\n",
        f"{_BOXED}::test_masks_are_those_of_a_guide_in_this_process",
    ),
    Mutant(
        "who sits out may do so for ever",
        f"{_GRAMMAR}/boxed.py",
        "        if self.sat + sum(self.under_way.values()) > _LONGEST_SITTING:",
        "        if self.sat > _LONGEST_SITTING:",
        f"{_BOXED}::test_who_sits_out_for_too_long_ends",
    ),
    Mutant(
        "a worker that is kept from computing counts as one that takes long",
        f"{_BOX}/box.py",
        'if sys.platform == "linux":  # which numbers',
        'if sys.platform == "other":  # which numbers',
        f"{_OF_BOX}::test_who_is_kept_from_computing_has_not_taken_long",
    ),
    Mutant(
        "a worker that does not get to compute keeps others waiting for ever",
        f"{_BOX}/box.py",
        "if left <= 0 or time.monotonic() > self._deadline:",
        "if left <= 0:",
        f"{_OF_BOX}::test_who_is_kept_from_computing_has_not_taken_long",
    ),
    Mutant(
        "a grammar is charged with what has not kept it waiting",
        f"{_GRAMMAR}/boxed.py",
        "        if self.sitting:\n            self.sat += seconds\n",
        "        self.sat += seconds\n",
        f"{_BOXED}::test_who_sits_out_for_too_long_ends",
    ),
    Mutant(
        "what a lane has taken waits for a guide that takes long",
        f"{_GRAMMAR}/service.py",
        "[*lane.left(), *self._fast.take_all(",
        "[*self._fast.take_all(",
        f"{_BOXED}::test_what_a_lane_has_taken_does_not_wait_for_a_guide_that_takes_long",
    ),
    Mutant(
        "all clients' prompts are one client's",
        _MISSES,
        "return request.client, request.cache_salt",
        'return "", request.cache_salt',
        f"{_OF_MISSES}::test_nobody_learns_of_what_others_sent",
    ),
    Mutant(
        "all salts' prompts are one salt's",
        _MISSES,
        "return request.client, request.cache_salt",
        'return request.client, ""',
        f"{_OF_MISSES}::test_nobody_learns_of_what_others_sent",
    ),
    Mutant(
        "what was written is not part of the next prompt",
        _MISSES,
        "one.tokens, one.living = tokens, None",
        "one.living = None",
        f"{_OF_MISSES}::test_what_was_written_is_of_the_next_turn",
    ),
    Mutant(
        "what a newcomer takes itself counts as lacking",
        "src/quire/core/memory/pool.py",
        "before = taking[2] if taking[1] == self.taker else self._num_evicted",
        "before = self._num_evicted",
        f"{_OF_MISSES}::test_an_eviction_has_a_time_a_cause_and_a_size",
    ),
    Mutant(
        "what is kept is evicted like all else",
        "src/quire/core/memory/paged.py",
        "self.device.kept.keep(block, until)",
        "pass",
        "tests/pure/core/memory/test_keeping.py::test_what_is_kept_outlives_what_came_later",
    ),
    Mutant(
        "what is kept is kept for ever",
        "src/quire/core/memory/keeping.py",
        "if self.until[block] <= now]",
        "if self.until[block] < 0]",
        "tests/pure/core/memory/test_keeping.py::test_its_time_ends",
    ),
    Mutant(
        "a client keeps the whole pool",
        "src/quire/core/memory/keeping.py",
        "if len(self.free) > self._most:",
        "if len(self.free) > 4 * self._most:",
        "tests/pure/core/memory/test_keeping.py::test_only_up_to_where_it_was_asked_and_only_a_share_of_the_pool",
    ),
    Mutant(
        "what is kept costs its client nothing",
        "src/quire/core/scheduling/fair.py",
        "(group.request.keeping_tokens if group.request.keep else 0)",
        "0",
        "tests/pure/core/memory/test_keeping.py::test_a_request_keeps_its_prompt_and_its_client_pays_for_it",
    ),
)

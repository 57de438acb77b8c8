"""The loop, its queues, and who watches it."""

from __future__ import annotations

from mutants.mutant import Mutant

_ENGINE, _OF_ENGINE = "src/quire/engine", "tests/pure/engine"
_SESSIONS, _ROOM = f"{_OF_ENGINE}/test_session_manager.py", f"{_OF_ENGINE}/test_waiting_room.py"
_PREPARATION, _RECORDER = f"{_OF_ENGINE}/test_preparation.py", f"{_OF_ENGINE}/test_recorder.py"
_TEMPLATES = "tests/torch/engine/test_templates.py"

MUTANTS = (
    Mutant(
        "chat templates are rendered in the server",
        f"{_ENGINE}/assembly/tokenizer.py",
        "tokenizer_directory(config), template, BoxedTemplates())",
        "tokenizer_directory(config), template)",
        f"{_TEMPLATES}::test_a_model_renders_in_a_box",
    ),
    Mutant(
        "a request's own template meets others' conversations",
        f"{_ENGINE}/assembly/tokenizer.py",
        "if call[-1] != OWN:",
        "if call:",
        f"{_TEMPLATES}::test_a_request_s_own_template_has_a_process_of_its_own",
    ),
    Mutant(
        "requests on their way are not counted",
        f"{_ENGINE}/waiting_room.py",
        "waiting = self._queue.num_new + self._coming",
        "waiting = self._queue.num_new",
        f"{_ROOM}::test_room_is_kept_for_those_that_are_on_their_way",
    ),
    Mutant(
        "requests on their way are counted for ever",
        f"{_ENGINE}/waiting_room.py",
        "        finally:\n            places.give_up()\n",
        "        finally:\n            pass\n",
        f"{_ROOM}::test_room_is_kept_for_those_that_are_on_their_way",
    ),
    Mutant(
        "tokens of a queued prompt stay counted as coming",
        f"{_ENGINE}/waiting_room.py",
        "            self._forget(min(self._tokens, tokens))\n",
        "            pass\n",
        f"{_ROOM}::test_what_a_text_turns_out_to_hold_is_what_counts",
    ),
    Mutant(
        "who has just been queued counts twice",
        f"{_ENGINE}/waiting_room.py",
        "            self._add(-min(self._left, 1))\n",
        "            pass\n",
        f"{_ROOM}::test_who_has_just_been_queued_counts_once",
    ),
    Mutant(
        "who left before it was queued gives up its place twice",
        f"{_ENGINE}/waiting_room.py",
        "            self._add(-min(self._left, 1))\n",
        "            self._add(-1)\n",
        f"{_ROOM}::test_who_left_before_it_was_queued_gives_up_its_place_once",
    ),
    Mutant(
        "seconds in which nobody waits count",
        "src/quire/core/scheduling/request_queue.py",
        "        if waiting:\n",
        "        if True:\n",
        f"{_ROOM}::test_time_in_which_nobody_waits_says_nothing",
    ),
    Mutant(
        "an idle session expires a moment too late",
        f"{_ENGINE}/session_manager.py",
        "self._clock() - since < self.rules.timeout",
        "self._clock() - since <= self.rules.timeout",
        f"{_SESSIONS}::test_an_idle_session_is_gone_once_its_time_is_over",
    ),
    Mutant(
        "an expired session is found until it is swept",
        f"{_ENGINE}/session_manager.py",
        "        if not self._is_open(session_id):\n            raise self.unknown(session_id)\n",
        "",
        f"{_SESSIONS}::test_an_idle_session_is_gone_once_its_time_is_over",
    ),
    Mutant(
        "an expired session is never swept",
        f"{_ENGINE}/session_manager.py",
        "for session_id in [one for one in self._idle_since if not self._is_open(one)]:",
        "for session_id in ():",
        f"{_SESSIONS}::test_whatever_is_asked_next_closes_it",
    ),
    Mutant(
        "a busy session expires",
        f"{_ENGINE}/session_manager.py",
        "        self._idle_since[session_id] = math.inf\n",
        "",
        f"{_SESSIONS}::test_a_busy_session_never_expires_and_is_idle_from_its_turn_s_end",
    ),
    Mutant(
        "an aborted turn leaves its session busy",
        f"{_ENGINE}/session_manager.py",
        "        if session_id is not None:\n            self._used(session_id)\n",
        "",
        f"{_SESSIONS}::test_a_busy_session_never_expires_and_is_idle_from_its_turn_s_end",
    ),
    Mutant(
        "a turn has no salt",
        f"{_ENGINE}/session_manager.py",
        "            cache_salt=own.cache_salt,\n",
        "",
        f"{_SESSIONS}::test_a_turn_has_its_session_s_salt",
    ),
    Mutant(
        "what waits for a turn is unbounded",
        f"{_ENGINE}/session_manager.py",
        "if session.num_input + more > _MOST_INPUT:",
        "if False:",
        f"{_SESSIONS}::test_what_waits_for_a_turn_is_bounded_under_a_window",
    ),
    Mutant(
        "a history is shortened though its turn is refused",
        f"{_ENGINE}/session_manager.py",
        "        history = session.history if shortened is None else shortened\n",
        "        if shortened is not None:\n"
        "            sessions.restart(session_id, shortened)\n"
        "        history = session.history if shortened is None else shortened\n",
        f"{_SESSIONS}::test_without_a_window_a_session_that_recomputes_never_ends",
    ),
    Mutant(
        "long and short texts stand in one line",
        f"{_ENGINE}/preparation.py",
        "            return await loop.run_in_executor(self._long, unless_closed)\n",
        "            return await loop.run_in_executor(self._short, unless_closed)\n",
        f"{_PREPARATION}::test_a_short_input_waits_for_no_long_one",
    ),
    Mutant(
        "a text is tokenized after the end",
        f"{_ENGINE}/preparation.py",
        "        if self._closed:\n            raise EngineError",
        "        if False:\n            raise EngineError",
        f"{_PREPARATION}::test_after_the_end_nothing_is_prepared_and_nobody_hangs",
    ),
    Mutant(
        "memory is given back after each long text",
        f"{_ENGINE}/preparation.py",
        "if self._giving_back is None and not self._closed:",
        "if not self._closed:",
        f"{_PREPARATION}::test_memory_is_given_back_once_after_long_inputs_only",
    ),
    Mutant(
        "a grammar is compiled for who has left",
        f"{_ENGINE}/preparation.py",
        "            compiled.cancel()  # for whom",
        "            pass  # for whom",
        f"{_PREPARATION}::test_a_grammar_that_takes_too_long_is_refused_and_holds_up_nothing_else",
    ),
    Mutant(
        "a recorder that has failed raises",
        f"{_ENGINE}/recorder.py",
        "            except Exception as error:\n                self._give_up(error)\n",
        "            except Exception:\n                raise\n",
        f"{_RECORDER}::test_a_recorder_with_a_bug_harms_nobody",
    ),
    Mutant(
        "a recorder that has failed goes on",
        f"{_ENGINE}/recorder.py",
        "            self._writer.abandon()\n            self._writer = None\n",
        "            pass\n",
        f"{_RECORDER}::test_a_disk_that_fails_at_any_moment_harms_nobody",
    ),
    Mutant(
        "a recorded block's root is not the cache's",
        f"{_ENGINE}/recorder.py",
        "hash_blocks(request.root_hash, tokens",
        "hash_blocks(b'', tokens",
        f"{_RECORDER}::test_blocks_have_the_names_that_they_have_in_the_cache",
    ),
)

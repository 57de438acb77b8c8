"""The loop, its queues, and who watches it."""

from __future__ import annotations

from mutants.mutant import Mutant

_ENGINE, _OF_ENGINE = "src/quire/engine", "tests/pure/engine"
_ROOM = f"{_OF_ENGINE}/test_waiting_room.py"
_PREPARATION, _RECORDER = f"{_OF_ENGINE}/test_preparation.py", f"{_OF_ENGINE}/test_recorder.py"
_TEMPLATES = "tests/torch/engine/test_templates.py"

MUTANTS = (
    Mutant(
        "each request of a burst has the whole line gone through",
        f"{_ENGINE}/forecast/forecasts.py",
        "self.unsaid.append(request.request_id)",
        "self.unsaid.append(request.request_id)\n            self.gathered()",
        f"{_OF_ENGINE}/test_forecasts.py::test_of_a_burst_one_thinks_once",
    ),
    Mutant(
        "a forecast knows of nobody who gives way",
        f"{_ENGINE}/forecast/outlook.py",
        "        while not (fitting := self._fitting()) and len(self._running) > 1:\n",
        "        while (fitting := 1 << 30) < 0:\n",
        f"{_OF_ENGINE}/test_forecasts.py::test_who_gives_way_comes_back_when_the_other_has_ended",
    ),
    Mutant(
        "what passes between two steps is not learnt",
        f"{_ENGINE}/forecast/forecasts.py",
        "        seconds = taken.seconds if begun is None else now - begun\n",
        "        seconds = taken.seconds\n",
        f"{_OF_ENGINE}/test_forecasts.py::test_what_is_between_steps_is_learnt_too",
    ),
    Mutant(
        "a pace that changes is not followed",
        f"{_ENGINE}/forecast/forecasts.py",
        "            self._first.learn(told.first, ttft - told.waited)\n",
        "",
        f"{_OF_ENGINE}/test_forecasts.py::test_a_pace_that_changes_again_and_again_is_followed",
    ),
    Mutant(
        "steps with prompts are forgotten while others decode",
        f"{_ENGINE}/forecast/step_times.py",
        "        kind = self._reading if work.tokens > work.sequences else self._decoding\n",
        "        kind = self._decoding\n",
        f"{_OF_ENGINE}/test_forecasts.py::test_what_prompts_take_is_not_forgotten_while_others_write",
    ),
    Mutant(
        "a request whose iterator is left in another event loop runs on",
        f"{_ENGINE}/engine_loop.py",
        "            reading.cancel()\n",
        "            pass\n",
        f"{_OF_ENGINE}/test_engine_loop.py::test_whoever_leaves_frees_the_blocks",
    ),
    Mutant(
        "a request of an event loop that is gone runs on",
        f"{_ENGINE}/engine_loop.py",
        "                        tell(deltas)\n",
        "                        with contextlib.suppress(RuntimeError):\n"
        "                            tell(deltas)\n",
        f"{_OF_ENGINE}/test_engine_loop.py::test_a_loop_that_is_gone_ends_its_requests",
    ),
    Mutant(
        "outputs that have been given grow on",
        f"{_ENGINE}/outputs.py",
        "                token_ids=[*output.token_ids],\n",
        "                token_ids=output.token_ids,\n",
        "tests/torch/engine/test_async_llm.py::test_outputs_grow_and_those_given_stay_as_they_were",
    ),
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
        "src/quire/engine/waiting_room.py",
        "        if waiting:\n",
        "        if True:\n",
        f"{_ROOM}::test_time_in_which_nobody_waits_says_nothing",
    ),
    Mutant(
        "long and short texts stand in one line",
        f"{_ENGINE}/thread.py",
        "            return await loop.run_in_executor(self._long, unless_closed)\n",
        "            return await loop.run_in_executor(self._short, unless_closed)\n",
        f"{_PREPARATION}::test_a_short_input_waits_for_no_long_one",
    ),
    Mutant(
        "a text is tokenized after the end",
        f"{_ENGINE}/thread.py",
        "        if self._closed:\n            raise EngineError",
        "        if False:\n            raise EngineError",
        f"{_PREPARATION}::test_after_the_end_nothing_is_prepared_and_nobody_hangs",
    ),
    Mutant(
        "memory is given back after each long text",
        f"{_ENGINE}/thread.py",
        "if self._giving_back is None and not self._closed:",
        "if not self._closed:",
        f"{_PREPARATION}::test_memory_is_given_back_once_after_long_inputs_only",
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
        "tokens, request.root_hash, spans",
        "tokens, b'', spans",
        f"{_RECORDER}::test_blocks_have_the_names_that_they_have_in_the_cache",
    ),
    Mutant(
        "a watcher that has failed hears on",
        f"{_ENGINE}/events.py",
        "                self.remove(watcher)\n",
        "                pass\n",
        f"{_OF_ENGINE}/test_watching.py::test_watchers_are_told_and_a_faulty_one_no_more",
    ),
    Mutant(
        "whoever watches is told of every event",
        f"{_ENGINE}/events.py",
        "            if getattr(type(one), event) is not own\n",
        "",
        f"{_OF_ENGINE}/test_watching.py::test_an_event_that_nobody_hears_costs_no_call",
    ),
    Mutant(
        "a step that gave nothing more to do is not told as the last",
        f"{_ENGINE}/engine.py",
        "if self.events.rested and not self.has_work:",
        "if False:",
        f"{_OF_ENGINE}/test_watching.py::test_all_that_an_engine_does_is_an_event",
    ),
    Mutant(
        "a setting is named that is enough for one, not for those before it",
        f"{_ENGINE}/dashboard/remedies.py",
        "        blocks += blocks_of(group, size)\n",
        "        blocks = scheduler.num_running_seqs + blocks_of(group, size)\n",
        f"{_OF_ENGINE}/dashboard/test_remedies.py::test_with_the_value_that_is_named_it_would_run",
    ),
    Mutant(
        "a window's layers read all of a text",
        "src/quire/engine/capacity/description.py",
        "min(context, w.tokens + w.sinks)",
        "context",
        "tests/pure/engine/capacity/test_reading.py::test_layers_with_a_window_read_no_more_than_it",
    ),
)

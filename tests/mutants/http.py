"""OpenAI's API and others', and what stands between the network and the routes."""

from __future__ import annotations

from mutants.mutant import Mutant

_HTTP, _GUARDS, _OF_HTTP = "src/quire/http", "src/quire/http/guards", "tests/server"
_KEYS, _BODIES, _PARSING = (f"{_OF_HTTP}/test_{what}.py" for what in ("keys", "bodies", "parsing"))
_ENVELOPE, _CONNECTIONS = f"{_OF_HTTP}/test_envelope.py", f"{_OF_HTTP}/test_connections.py"
_OTLP = f"{_OF_HTTP}/test_otlp.py"
_UNKNOWN = f"{_OF_HTTP}/doors/test_unknown_fields.py"
_RESPONSES = f"{_OF_HTTP}/doors/test_responses.py"
_PACKAGING = "tests/pure/test_packaging.py"

MUTANTS = (
    Mutant(
        "who was passed over for room is never asked for it again",
        "src/quire/http/guards/connections.py",
        "        self._others.is_read(self)\n",
        "",
        "tests/server/test_turns.py::test_who_was_passed_over_is_the_longest_again_once_it_is_read",
    ),
    Mutant(
        "what is made of a large body is made on the event loop",
        "src/quire/http/guards/bodies.py",
        "return await self.apart(work) if large else work()",
        "return work()",
        "tests/server/test_turns.py::"
        "test_what_is_made_of_a_large_body_is_made_beside_the_event_loop[/tokenize-large4-small4]",
    ),
    Mutant(
        "pieces of reasoning are put together one by one",
        "src/quire/http/doors/responses_requests.py",
        "said.setdefault(name, []).append(value)",
        'said[name] = [said[name][0] + value] if name in said and name != "tool_calls" else [value]',
        "tests/server/doors/test_responses.py::"
        "test_reasoning_in_many_pieces_is_put_together_in_time_with_its_length",
    ),
    Mutant(
        "garbage is looked for while one answer of much is made",
        f"{_HTTP}/serving.py",
        "living += max(0, sys.getallocatedblocks() - self._kept) // _BLOCKS",
        "pass",
        f"{_OF_HTTP}/test_operation.py::"
        "test_what_few_have_made_of_what_they_were_sent_lives_as_well",
    ),
    # -- the page ------------------------------------------------------------------------------
    Mutant(
        "any number of questions about the engine wait",
        f"{_HTTP}/live/watching.py",
        "if len(self._waiting) >= _QUESTIONS:",
        "if False:",
        f"{_OF_HTTP}/test_live.py::test_many_who_ask_and_leave_keep_nobody_from_asking",
    ),
    Mutant(
        "one question about the engine is put between two steps",
        f"{_HTTP}/live/watching.py",
        "        if took > _LONGEST:\n",
        "        if True:\n",
        f"{_OF_HTTP}/test_live.py::test_questions_are_put_as_there_is_time_for_them",
    ),
    Mutant(
        "figures of another moment than the map's, when a server is gone",
        f"{_HTTP}/page/live.js",
        "if (!signal.aborted) this.streams = false;",
        "if (!signal.aborted) { this.streams = false; this.latest = null; }",
        "tests/browser/test_pressure.py::test_figures_stay_with_the_map_when_the_server_is_gone",
    ),
    # -- the end -------------------------------------------------------------------------------
    Mutant(
        "what a server has started outlives one that is killed",
        f"{_GUARDS}/last_resort.py",
        "    for one in started:",
        "    for one in []:",
        f"{_OF_HTTP}/test_shutdown.py::test_the_process_is_gone_whatever_hangs",
    ),
    Mutant(
        "the first process of a container is killed in vain",
        f"{_GUARDS}/last_resort.py",
        "    _send(process, _EXIT, _GONE)\n",
        "",
        f"{_OF_HTTP}/test_shutdown.py::test_the_first_process_of_a_container_is_gone_too",
    ),
    # -- refusals ------------------------------------------------------------------------------
    Mutant(
        "a refusal repeats what a field's type should be, however long",
        f"{_HTTP}/errors.py",
        "replace(word, cut(word))",
        "replace(word, word)",
        f"{_OF_HTTP}/doors/test_long_words.py::test_what_is_deep_in_a_body",
    ),
    # -- OpenTelemetry -------------------------------------------------------------------------
    Mutant(
        "by OTLP a bucket of a histogram counts those below it",
        f"{_HTTP}/otlp_metrics.py",
        "counts = [int(b - a) for a, b in",
        "counts = [int(b) for a, b in",
        f"{_OTLP}::test_metrics_are_those_of_prometheus_by_the_names_of_the_conventions",
    ),
    Mutant(
        "the last metrics of a server are not sent",
        f"{_HTTP}/otlp_metrics.py",
        "            self._send()\n        self._send()\n",
        "            self._send()\n",
        f"{_OTLP}::test_metrics_are_those_of_prometheus_by_the_names_of_the_conventions",
    ),
    # -- keys ----------------------------------------------------------------------------------
    Mutant(
        "what needs a key is told by a path's beginning",
        f"{_GUARDS}/keys.py",
        "return path in _OPEN or",
        "return path.startswith(tuple(_OPEN)) or",
        f"{_KEYS}::test_no_spelling_of_a_path_leads_round_the_guard",
    ),
    Mutant(
        "a proxy's path leads round the guard",
        f"{_HTTP}/errors.py",
        'return path.removeprefix(scope.get("root_path", ""))',
        "return '/' + path.rpartition('/')[2]",
        f"{_KEYS}::test_no_spelling_of_a_path_leads_round_the_guard",
    ),
    Mutant(
        "comparing ends at the key that matches",
        f"{_GUARDS}/keys.py",
        "matches = [secrets.compare_digest(digest, known) for known in self._digests]",
        "matches = (secrets.compare_digest(digest, known) for known in self._digests)",
        f"{_KEYS}::test_all_keys_are_compared_whichever_it_is",
    ),
    Mutant(
        "a key's name can be computed from the key",
        f"{_GUARDS}/keys.py",
        "self._secret = secrets.token_bytes(32)",
        "self._secret = bytes(32)",
        f"{_KEYS}::test_names_tell_keys_apart_and_nothing_else",
    ),
    Mutant(
        "another key beside a bearer token passes",
        f"{_GUARDS}/keys.py",
        "return borne.pop() if len(borne) == 1 and",
        "return borne.pop() if borne and",
        f"{_KEYS}::test_how_a_key_is_sent",
    ),
    Mutant(
        "a key header may be given twice",
        f"{_GUARDS}/keys.py",
        "len(borne) == 1 and max(len(credentials), len(keys)) == 1",
        "len(borne) == 1",
        f"{_KEYS}::test_how_a_key_is_sent",
    ),
    Mutant(
        "`x-api-key` is not read",
        f"{_GUARDS}/keys.py",
        "borne = {*map(_bearer_token, credentials), *keys}",
        "borne = {*map(_bearer_token, credentials)}",
        f"{_OF_HTTP}/doors/test_probes.py::test_a_key_in_anthropic_s_header",
    ),
    Mutant(
        "another key's salt can be made up",
        f"{_HTTP}/service.py",
        'return sha256(f"{self.key}{salt}".encode()).hexdigest()',
        "return salt",
        f"{_KEYS}::test_keys_do_not_share_a_cache",
    ),
    Mutant(
        "names make one key many clients",
        f"{_HTTP}/service.py",
        'return self.key if self.key is not None else _checked("user", user)',
        'return _checked("user", user) or self.key or ""',
        f"{_KEYS}::test_where_there_are_several_keys_they_are_the_clients",
    ),
    Mutant(
        "a session is open to every key",
        f"{_HTTP}/service.py",
        "return self.key is None or self.key == session_client",
        "return True",
        f"{_OF_HTTP}/test_sessions.py::test_with_several_keys_a_session_is_its_key_s",
    ),
    Mutant(
        "a login has no end",
        f"{_GUARDS}/keys.py",
        " and int(until) > now)",
        ")",
        f"{_OF_HTTP}/test_page.py::test_a_login_ends_with_its_time",
    ),
    Mutant(
        "a login takes the place of a key for whoever has the cookie",
        f"{_GUARDS}/keys.py",
        'http.cookies.get(COOKIE, "") if PAGE_HEADER in http.headers else ""',
        'http.cookies.get(COOKIE, "")',
        f"{_OF_HTTP}/test_page.py::test_a_login_takes_the_place_of_a_key_for_the_page_alone",
    ),
    # -- bodies --------------------------------------------------------------------------------
    Mutant(
        "a body is read without a time",
        f"{_GUARDS}/bodies.py",
        "await asyncio.wait_for(self._read(http, body), self._timeout)",
        "await self._read(http, body)",
        f"{_BODIES}::test_a_body_that_does_not_come_in_time_is_a_timeout",
    ),
    Mutant(
        "a body is read in spite of the length it announces",
        f"{_GUARDS}/bodies.py",
        'if int(http.headers.get("content-length", 0)) > self.max_bytes:',
        "if False:",
        f"{_BODIES}::test_what_is_too_large_is_not_asked_for",
    ),
    Mutant(
        "unread bytes are never given back",
        f"{_GUARDS}/bodies.py",
        "            self._unread -= _counted(body)\n",
        "",
        f"{_BODIES}::test_unread_bytes_are_bounded_together",
    ),
    Mutant(
        "unread bytes of small bodies count",
        f"{_GUARDS}/bodies.py",
        "return max(0, len(body) - _SMALL)",
        "return len(body)",
        f"{_BODIES}::test_unread_bytes_are_bounded_together",
    ),
    Mutant(
        "the parser outlives the server",
        f"{_GUARDS}/bodies.py",
        "self._parser.shutdown(cancel_futures=True)",
        "pass",
        f"{_BODIES}::test_large_bodies_are_parsed_in_one_thread_that_ends_with_the_server",
    ),
    Mutant(
        "a connection is kept though bytes are left unread",
        f"{_GUARDS}/envelope.py",
        'message["headers"] = [*others, (b"connection", b"close")]',
        'message["headers"] = others',
        f"{_BODIES}::test_a_body_too_large_names_the_limit_and_closes",
    ),
    Mutant(
        "a refused client is cut short while it sends",
        f"{_GUARDS}/envelope.py",
        "                await asyncio.wait_for(throw_away(), _LINGER)\n",
        "                pass\n",
        f"{_BODIES}::test_a_client_in_the_midst_of_sending_sees_why_it_is_refused",
    ),
    Mutant(
        "a client that had sent all is closed",
        f"{_GUARDS}/envelope.py",
        'message["status"] >= 400 and unread:',
        'message["status"] >= 400:',
        f"{_BODIES}::test_a_connection_is_kept_after_a_refusal_that_left_nothing_unread",
    ),
    Mutant(
        "a hang-up cancels work after its answer is done",
        f"{_GUARDS}/envelope.py",
        "            gone = not done\n",
        "            gone = True\n",
        f"{_OF_HTTP}/test_turns.py::test_who_hangs_up_once_the_answer_is_done_cancels_nothing",
    ),
    Mutant(
        "a hang-up aborts nothing",
        f"{_GUARDS}/envelope.py",
        "                work.cancel()\n",
        "                pass\n",
        f"{_OF_HTTP}/test_failures.py::test_a_client_that_hangs_up_frees_its_blocks",
    ),
    Mutant(
        "quotes are not counted when a body's structure is",
        f"{_GUARDS}/bodies.py",
        "        outside = quotes & 1 == 0\n",
        "        outside = quotes >= 0\n",
        f"{_PARSING}::test_structure_is_counted_outside_of_texts_only",
    ),
    Mutant(
        "escapes are lost when a body's structure is counted",
        f"{_GUARDS}/bodies.py",
        'body.replace(rb"\\\\", b"__").replace(rb"\\"", b"__")',
        "body",
        f"{_PARSING}::test_structure_is_counted_outside_of_texts_only",
    ),
    Mutant(
        "what came before is lost when a body's structure is counted",
        f"{_GUARDS}/bodies.py",
        "        in_text = quotes[-1] & 1\n",
        "",
        f"{_PARSING}::test_structure_is_counted_outside_of_texts_only",
    ),
    Mutant(
        "a body's values are not counted",
        f"{_GUARDS}/bodies.py",
        "        raise HTTPException(400, complaint)\n",
        "        return\n",
        f"{_PARSING}::test_what_would_take_long_to_parse_is_refused",
    ),
    Mutant(
        "a packed body is unpacked without end",
        f"{_GUARDS}/bodies.py",
        "content = unpacking.decompress(body, most + 1)",
        "content = unpacking.decompress(body)[:most]",
        f"{_ENVELOPE}::test_a_body_is_unpacked_no_further_than_it_may_go",
    ),
    # -- envelope ------------------------------------------------------------------------------
    Mutant(
        "an id that a log cannot hold is taken over",
        f"{_GUARDS}/envelope.py",
        "return given if given is not None and _CLEAN.fullmatch(given) else None",
        "return given",
        f"{_ENVELOPE}::test_every_answer_bears_its_request_s_id",
    ),
    Mutant(
        "a path is decoded before it is logged",
        f"{_GUARDS}/envelope.py",
        'path: bytes = scope.get("raw_path") or scope["path"].encode()',
        'path: bytes = scope["path"].encode()',
        f"{_ENVELOPE}::test_a_request_has_a_line_in_the_log",
    ),
    # -- the end -------------------------------------------------------------------------------
    Mutant(
        "a drain begins new requests",
        f"{_GUARDS}/envelope.py",
        "        if self._drain.begun:\n",
        "        if False:\n",
        f"{_OF_HTTP}/test_shutdown.py::test_what_has_begun_is_finished_and_nothing_else_is_begun",
    ),
    # -- responses -----------------------------------------------------------------------------
    Mutant(
        "somebody else's response is found",
        f"{_HTTP}/doors/responses.py",
        'or it is another owner\'s."""\n        own = self._by_owner.get(owner)\n',
        'or it is another owner\'s."""\n'
        "        mine, all_kept = self._by_owner.get(owner), self._by_owner.values()\n"
        "        own = mine or next((one for one in all_kept if response_id in one.kept), None)\n",
        f"{_RESPONSES}::test_responses_of_another_key_are_not_found",
    ),
    Mutant(
        "responses are not bounded in bytes",
        f"{_HTTP}/doors/responses.py",
        "            or sum(own.size for own in self._by_owner.values()) > self._most_bytes\n",
        "",
        f"{_RESPONSES}::test_the_store_keeps_so_many_and_so_much",
    ),
    Mutant(
        "a response's use does not count",
        f"{_HTTP}/doors/responses.py",
        "        own.kept.move_to_end(response_id)\n",
        "",
        f"{_RESPONSES}::test_who_takes_most_room_loses_first_and_conversations_lose_their_ends_first",
    ),
    Mutant(
        "who has least room loses first",
        f"{_HTTP}/doors/responses.py",
        "largest = max(self._by_owner",
        "largest = min(self._by_owner",
        f"{_RESPONSES}::test_who_takes_most_room_loses_first_and_conversations_lose_their_ends_first",
    ),
    Mutant(
        "a block is opened before the last one is closed",
        f"{_HTTP}/doors/turn_stream.py",
        "        yield from self._close()\n        self._open = Block(",
        "        self._open = Block(",
        f"{_OF_HTTP}/doors/test_anthropic.py::test_a_stream_comes_to_what_the_whole_message_says",
    ),
    # -- what is not known ---------------------------------------------------------------------
    Mutant(
        "a misspelt field passes with a beta",
        f"{_HTTP}/unknown_fields.py",
        "elif self.beta and name not in _REASONS and not _nearest(name, known):",
        "elif self.beta and name not in _REASONS:",
        f"{_UNKNOWN}::test_of_a_beta_passes_what_is_not_known",
    ),
    Mutant(
        "a beta brings any number of fields",
        f"{_HTTP}/unknown_fields.py",
        "        if len(self.warnings) == _MOST:\n            return False\n",
        "",
        f"{_UNKNOWN}::test_of_a_beta_passes_what_is_not_known",
    ),
    Mutant(
        "a client's own names are labels",
        f"{_HTTP}/metrics.py",
        'label = name if name in NOTES else "_other"',
        "label = name",
        f"{_UNKNOWN}::test_of_a_beta_passes_what_is_not_known",
    ),
    Mutant(
        "an adapter's misspelt name is the model's",
        f"{_HTTP}/service.py",
        "or config.served_model_name or self.adapters is not None:",
        "or config.served_model_name:",
        f"{_OF_HTTP}/test_adapters.py::test_adapters_are_models_with_a_parent_in_every_door",
    ),
    Mutant(
        "Ollama's conversations lose what is newest",
        f"{_HTTP}/doors/ollama_context.py",
        "best, high = found, middle",
        "best, low = found, middle + 1",
        f"{_OF_HTTP}/doors/test_context_length.py::test_ollama_leaves_out_the_oldest_messages",
    ),
    # -- answers -------------------------------------------------------------------------------
    Mutant(
        "a chunk's usage is behind",
        f"{_HTTP}/openai/answers.py",
        "written = self._tokens[choice.index] - (0 if last else len(delta.token_ids))",
        "written = self._tokens[choice.index] - len(delta.token_ids)",
        f"{_OF_HTTP}/test_fields.py::test_every_chunk_may_tell_the_usage",
    ),
    Mutant(
        "that max_tokens was cut is not told",
        f"{_HTTP}/openai/answers.py",
        "if known + wanted > longest:",
        "if False:",
        f"{_OF_HTTP}/test_fields.py::test_max_tokens_above_what_is_left_are_cut_and_the_answer_says_so",
    ),
    Mutant(
        "no room is left for an output where a prompt is cut",
        f"{_HTTP}/body_fields.py",
        "max(1, max_model_len - output) if given == -1",
        "max_model_len if given == -1",
        f"{_OF_HTTP}/test_fields.py::test_a_prompt_is_cut",
    ),
    Mutant(
        "two tools may have one name",
        f"{_HTTP}/chats/speech.py",
        "        if tool.name in names:\n",
        "        if False:\n",
        f"{_OF_HTTP}/test_tools.py::test_what_cannot_be_is_refused_by_name",
    ),
    # -- connections ---------------------------------------------------------------------------
    Mutant(
        "held connections make no room",
        f"{_GUARDS}/connections.py",
        "if one is not None and not one.held:\n                return one",
        "pass",
        f"{_CONNECTIONS}::test_connections_that_are_held_lock_nobody_out",
    ),
    Mutant(
        "connections that have gone count",
        f"{_GUARDS}/connections.py",
        "        self._open.discard(connection)\n",
        "",
        f"{_CONNECTIONS}::test_connections_that_have_gone_make_room",
    ),
    Mutant(
        "connections that are served lose their place",
        f"{_GUARDS}/connections.py",
        "            self._others.works(self)\n        super().on_message_complete()",
        "            pass\n        super().on_message_complete()",
        f"{_CONNECTIONS}::test_connections_that_are_served_are_not_closed_for_others",
    ),
    Mutant(
        "any number of requests may be sent at once",
        f"{_GUARDS}/connections.py",
        "if len(self._cycles) >= _MOST_PIPELINED:",
        "if False:",
        f"{_CONNECTIONS}::test_requests_sent_together_are_bounded",
    ),
    Mutant(
        "only the last of several requests hears of a hang-up",
        f"{_GUARDS}/connections.py",
        "for cycle in self._cycles:\n            cycle.disconnected = True",
        "for cycle in [*self._cycles][-1:]:\n            cycle.disconnected = True",
        f"{_CONNECTIONS}::test_a_client_that_hangs_up_on_several_requests_leaves_none",
    ),
    Mutant(
        "heads of several requests add up",
        f"{_GUARDS}/connections.py",
        "        self._head_bytes = self._unseen_bytes = 0\n",
        "        self._unseen_bytes = 0\n",
        f"{_CONNECTIONS}::test_a_long_head_is_served",
    ),
    Mutant(
        "a pod that drains is ended for it",
        "deploy/kubernetes/quire.yaml",
        "httpGet: {path: /version, port: http}",
        "httpGet: {path: /health, port: http}",
        f"{_PACKAGING}::test_draining_takes_requests_away_and_ends_nothing",
    ),
    Mutant(
        "a pod is killed before it has drained",
        "deploy/kubernetes/quire.yaml",
        "terminationGracePeriodSeconds: 60",
        "terminationGracePeriodSeconds: 40",
        f"{_PACKAGING}::test_whatever_stops_it_waits_for_the_drain",
    ),
    Mutant(
        "figures are looked for at a port that no pod has",
        "deploy/kubernetes/podmonitor.yaml",
        "port: http",
        "port: metrics",
        f"{_PACKAGING}::test_manifests_and_image_mean_the_same_server",
    ),
    Mutant(
        "a stranger's package is said to bring tracing",
        "src/quire/http/config/otlp.py",
        "pip install 'quire-llm[otel]'",
        "pip install 'quire[otel]'",
        f"{_PACKAGING}::test_what_is_said_to_install_is_there",
    ),
    Mutant(
        "a stranger's module of our name is not seen",
        "src/quire/tools/doctor/system.py",
        '"\\nquire/" in',
        '"\\nquire-llm/" in',
        "tests/pure/tools/test_doctor.py"
        "::test_another_distribution_with_a_module_of_our_name_is_found",
    ),
    Mutant(
        "who names a model that cannot be had now is told of another",
        "src/quire/tools/commands/nearest.py",
        "if wanted in known:",
        'if wanted == "":',
        "tests/pure/tools/test_nearest.py::test_the_suggested_name_that_comes_near",
    ),
    Mutant(
        "without PyTorch doctor advises a compiler",
        "src/quire/tools/doctor/advice.py",
        "*(_computing(facts) if facts.torch_missing is None else _without_torch(facts)),",
        "*_computing(facts),",
        "tests/pure/tools/test_nearest.py"
        "::test_without_pytorch_a_command_says_so_and_doctor_what_to_do",
    ),
    Mutant(
        "vectors count for ever",
        "src/quire/http/openai/prompt_vectors.py",
        "        weakref.finalize(request, self._let_go.extend, sizes).atexit = False\n",
        "",
        "tests/torch/engine/test_prompt_embeds_served.py::test_many_are_answered_in_bounded_memory",
    ),
    Mutant(
        "vectors that are held do not count",
        "src/quire/http/openai/prompt_vectors.py",
        "if self._held + wanted > most:",
        "if wanted > most:",
        "tests/torch/engine/test_prompt_embeds_served.py::test_what_others_hold_is_waited_for",
    ),
)

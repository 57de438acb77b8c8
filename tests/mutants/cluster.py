"""Which replica gets a request, and how many there are."""

from __future__ import annotations

from mutants.mutant import Mutant

_RULES, _OF_CLUSTER = "cluster/src/quire_cluster/rules", "cluster/tests/pure"
_AFFINITY = f"{_OF_CLUSTER}/test_affinity.py"

MUTANTS = (
    Mutant(
        "new work of an idle fleet goes by name",
        f"{_RULES}/affinity.py",
        "return cost, known.use_at(self._choices), chance",
        "return cost, 0.0, name.encode()",
        f"{_AFFINITY}::test_no_name_decides",
    ),
    Mutant(
        "new work of an idle fleet goes where least was met",
        f"{_RULES}/affinity.py",
        "return cost, known.use_at(self._choices), chance",
        "return cost, float(len(known.pieces)), chance",
        f"{_AFFINITY}::test_new_prompts_spread_however_many_were_met_before",
    ),
    Mutant(
        "more is remembered of a replica than its pool holds",
        f"{_RULES}/affinity.py",
        "return max(report.capacity // TOKENS_PER_PIECE, _FEWEST_PIECES)",
        "return 2**30",
        f"{_AFFINITY}::test_no_more_is_remembered_than_a_pool_holds",
    ),
    Mutant(
        "beginnings are forgotten first",
        f"{_RULES}/affinity.py",
        "for piece in reversed(prefix.pieces):",
        "for piece in prefix.pieces:",
        f"{_AFFINITY}::test_beginnings_are_remembered_longest",
    ),
    Mutant(
        "what was sent counts after it was answered",
        f"{_RULES}/affinity.py",
        "known.num_sent -= known.sent.pop(request, 0)",
        "known.sent.pop(request, 0)",
        f"{_AFFINITY}::test_what_was_sent_counts_until_the_replica_tells_of_it_or_has_answered",
    ),
    Mutant(
        "what was sent counts after it was told of",
        f"{_RULES}/affinity.py",
        "known.report, known.sent, known.num_sent = report.number, {}, 0",
        "known.report = report.number",
        f"{_AFFINITY}::test_what_was_sent_counts_until_the_replica_tells_of_it_or_has_answered",
    ),
    Mutant(
        "what all prompts begin with keeps them in one pool",
        f"{_RULES}/affinity.py",
        "            known.lost += TOKENS_PER_PIECE if room else 0\n",
        "",
        f"{_AFFINITY}::test_what_all_prompts_begin_with_does_not_keep_them_in_one_pool",
    ),
    Mutant(
        "load counts for nothing",
        f"{_RULES}/affinity.py",
        "cost = new + before + short + _RUNNING * load.running",
        "cost = float(new)",
        f"{_AFFINITY}::test_load_outweighs_a_prefix",
    ),
    Mutant(
        "replicas are taken away while somebody waits",
        f"{_RULES}/scaling.py",
        "return now if wait > 0 else now - 1",
        "return now - 1",
        f"{_OF_CLUSTER}/test_scaling.py::test_replicas_wanted",
    ),
    Mutant(
        "several replicas are taken away at once",
        f"{_RULES}/scaling.py",
        "return now if wait > 0 else now - 1",
        "return now if wait > 0 else wanted",
        f"{_OF_CLUSTER}/test_scaling.py::test_replicas_wanted",
    ),
    Mutant(
        "a line adds no replica",
        f"{_RULES}/scaling.py",
        "        wanted = max(wanted, now + 1)\n",
        "        pass\n",
        f"{_OF_CLUSTER}/test_scaling.py::test_replicas_wanted",
    ),
    # -- the end -------------------------------------------------------------------------------
    Mutant(
        "who ends what Ray leaves also ends who ends what hangs",
        "cluster/src/quire_cluster/keeper.py",
        "set(_below(os.getpid())) - self._others",
        "set(_below(os.getpid()))",
        f"{_OF_CLUSTER}/test_ending.py::test_the_process_is_gone_whatever_hangs",
    ),
    Mutant(
        "an engine that could not be started says nothing of why",
        "cluster/src/quire_cluster/running.py",
        "{re.escape(EngineError.__module__)}",
        "quire\\.errors",
        f"{_OF_CLUSTER}/test_ending.py::test_why_an_engine_could_not_be_started",
    ),
)

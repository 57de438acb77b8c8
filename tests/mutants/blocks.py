"""Blocks beyond the pool."""

from __future__ import annotations

from mutants.mutant import Mutant

_STORE, _OF_STORE = "src/quire/blocks/store", "tests/pure/blocks/store"
_RECORD = f"{_OF_STORE}/test_record.py"
_TRANSPORT, _OF_TRANSPORT = "src/quire/kernels/transport", "tests/pure/kernels/test_transport.py"
_TRANSFER = "tests/pure/blocks/transfer/test_transfer.py"
_OFFLOADING, _OF_OFFLOADING = (
    "src/quire/blocks/offloading.py",
    "tests/pure/blocks/test_offloading.py",
)
_NAMED = f"{_OF_OFFLOADING}::test_a_state_has_the_name_of_its_depth_where_it_is_stored_and_fetched"
_EMBEDS = "tests/torch/engine/test_prompt_embeds.py"

MUTANTS = (
    Mutant(
        "who calls and is silent is kept",
        f"{_TRANSPORT}/port.py",
        "(_SILENCE if guest.asks else _LONGEST_ANSWER)",
        "_LONGEST_ANSWER",
        f"{_TRANSFER}::test_silent_connections_cost_no_thread_and_shut_nobody_out",
    ),
    Mutant(
        "who takes no answer keeps others out",
        f"{_TRANSPORT}/port.py",
        "if guest.asks or guest.since < late]",
        "if guest.asks]",
        f"{_TRANSFER}::test_who_takes_no_answer_makes_room",
    ),
    Mutant(
        "memory is taken for whatever payload is announced",
        f"{_TRANSPORT}/connection.py",
        "if size > _MOST or along > most:",
        "if size > _MOST:",
        f"{_OF_TRANSPORT}::test_what_is_no_message_takes_no_memory",
    ),
    Mutant(
        "whatever proves to have the key is believed",
        "src/quire/blocks/transfer/key.py",
        "self._mac(who.encode(), challenge, theirs)):",
        "proof.mac):",
        f"{_TRANSFER}::test_who_does_not_know_the_key_gets_no_block_by_what_others_have_said",
    ),
    Mutant(
        "a request names whatever engine it likes",
        "src/quire/http/handover.py",
        "if not key and (not is_loopback(host)",
        "if not key and (False",
        "tests/torch/engine/test_handover.py::test_a_client_cannot_make_up_who_blocks_are_taken_from",
    ),
    Mutant(
        "sums of records are not compared",
        f"{_STORE}/record.py",
        "if digest(buffers) != sums[kv_group]:",
        "if False:",
        f"{_RECORD}::test_what_is_damaged_is_never_given",
    ),
    Mutant(
        "heads of records are not compared",
        f"{_STORE}/record.py",
        "if bytes(head) != self._head(content, sums):",
        "if False:",
        f"{_RECORD}::test_what_belongs_to_something_else_is_not_taken",
    ),
    Mutant(
        "a part is looked for in the place of another",
        f"{_STORE}/record.py",
        "self.head_bytes + sum(self.part_bytes[:kv_group])",
        "self.head_bytes",
        f"{_RECORD}::test_what_is_read_is_what_was_written",
    ),
    Mutant(
        "a store forgets a block's newer copy with the older one",
        f"{_STORE}/index.py",
        "if place is not None and place.file == segment:",
        "if place is not None:",
        f"{_OF_STORE}/test_index.py::test_the_newer_copy_is_found_and_stays_when_the_older_one_is_gone",
    ),
    Mutant(
        "a segment that is damaged breaks the index",
        f"{_STORE}/index.py",
        "with suppress(OSError):",
        "with suppress():",
        f"{_OF_STORE}/test_directory.py::test_a_segment_whose_beginning_is_damaged_is_passed_over",
    ),
    Mutant(
        "a disk is not asked for what memory has lost",
        f"{_STORE}/tiers.py",
        "return self.shelf.has(name) or (self.disk is not None and self.disk.has(name))",
        "return self.shelf.has(name)",
        f"{_OF_STORE}/test_tiers.py::test_a_disk_has_what_main_memory_has_lost",
    ),
    Mutant(
        "main memory does not note what is found in the pool",
        f"{_STORE}/tiers.py",
        "        self.shelf.used(ordered)\n",
        "",
        f"{_OF_STORE}/test_tiers.py::test_the_least_recently_used_go_first_and_what_comes_back_is_what_was_stored",
    ),
    Mutant(
        "a store keeps blocks of vectors",
        _OFFLOADING,
        "if first == end or branch.spans:",
        "if first == end:",
        f"{_EMBEDS}::test_a_store_keeps_none",
    ),
    Mutant(
        "a state is stored by the name of its block",
        _OFFLOADING,
        "return content._replace(name=name_of_state(content.name))",
        "return content",
        _NAMED,
    ),
    Mutant(
        "what answers leave of states is stored",
        _OFFLOADING,
        "contents.locate_state(content.name) if of_prompt else None",
        "contents.locate_state(content.name)",
        _NAMED,
    ),
    Mutant(
        "the whole chain is noted at each filled block",
        _OFFLOADING,
        "return 1 << max(0, count.bit_length() - 6)",
        "return 1",
        f"{_OF_OFFLOADING}::test_what_is_noted_of_a_growing_text_does_not_grow_with_it",
    ),
)

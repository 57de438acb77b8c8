"""Finds the tokens of a GGUF file that end a text: named ones, and ones known by their text.

A file can name one end, that of a document, and few name more. So a chat's turn ends at every token
whose text marks the end of a turn, of a document, or of a file of code, as in llama.cpp. Two of
these marks end something smaller if others exist beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quire.models.gguf.header import is_list

CONTROL = 3  # of a token's types

_NAMED = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
_TURNS = {
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>",
    "<end_of_utterance>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<|tool_response>",
    "<EOT>", "_<EOT>", "[EOT]", "[e~[",
}  # fmt: skip
_DOCUMENTS = {
    "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "<｜end▁of▁sentence｜>",
}  # fmt: skip
_FILES = {
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>", "<fim-repo>",
    "<|repo_name|>", "<REPO>", "<reponame>", "<|file_sep|>",
}  # fmt: skip
_ENDS = _TURNS | _DOCUMENTS | _FILES
_MESSAGE = "<|end|>"  # of a message, where a turn ends at one of each of these
_OF_TURNS = ({"<|return|>", "<|flush|>"}, {"<|call|>", "<|calls|>"})
_STRUCK = "</s>"  # is HTML's as well: it ends a text only where the file says that it is control


def end_tokens(metadata: Mapping[str, Any]) -> list[int]:
    """Their ids; what a file names may be none of its tokens."""
    tokens, types = (_list(metadata, name) for name in ("tokens", "token_type"))
    by_text = {text: at for at, text in enumerate(tokens) if text in _ENDS}
    if all(by_text.keys() & marks for marks in _OF_TURNS):
        by_text.pop(_MESSAGE, None)
    struck = by_text.get(_STRUCK)
    if struck is not None and types and list(types[struck : struck + 1]) != [CONTROL]:
        del by_text[_STRUCK]
    return list(dict.fromkeys([*_named(metadata), *by_text.values()]))


def _list(metadata: Mapping[str, Any], name: str) -> Sequence[Any]:
    values = metadata.get(f"tokenizer.ggml.{name}")
    return values if is_list(values) else ()


def _named(metadata: Mapping[str, Any]) -> Iterator[Any]:
    for name in _NAMED:
        for key in (f"tokenizer.ggml.{name}_token_id", f"tokenizer.ggml.{name}_token_ids"):
            given = metadata.get(key, [])
            yield from given if is_list(given) else [given]

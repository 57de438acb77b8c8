"""A model's tokenizer as transformers' users know it, with the very tokens that prompts have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers

from quire.models.files import read_object
from quire.models.gguf import is_gguf, open_gguf
from quire.text.chat_template import special_tokens
from quire.text.gguf_tokenizer import read_tokenizer
from quire.text.tokenizer import Tokenizer, transformers_tokenizer


def for_transformers(tokenizer: Tokenizer, directory: Path) -> Any:
    """A ``PreTrainedTokenizerBase`` of the files that ``tokenizer`` was read from."""
    from transformers import PreTrainedTokenizerFast

    text = tokenizer.to_json()
    if text is None:
        return transformers_tokenizer(directory)
    settings = directory / "tokenizer_config.json"
    if is_gguf(directory):
        config = read_tokenizer(open_gguf(directory))[1]
    else:
        config = read_object(settings) if settings.exists() else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(text),
        chat_template=tokenizer.chat_template or None,
        clean_up_tokenization_spaces=False,
        **special_tokens(config),
    )

"""Train and save the tokenizer: byte-level BPE with the special tokens of the chat format."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT, USER, ASSISTANT, SYSTEM, END = SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|end|>",
)

# Words with their leading space, up to three digits, punctuation, line breaks with the
# indentation apart: what documentation with code in it repeats.
SPLIT = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"

# With tools in the form of Hermes and Qwen, which the model was not taught: it writes calls where a
# grammar leaves it no choice.
CHAT_TEMPLATE = (
    "{% if tools %}"
    "{{ '<|system|>Functions: ' + (tools | tojson) + ' To call one, write <tool_call>"
    '{"name": "...", "arguments": {...}}</tool_call>\' + \'<|end|>\' }}'
    "{% endif %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'tool' %}"
    "{{ '<|user|><tool_response>' + message['content'] + '</tool_response><|end|>' }}"
    "{% elif message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role: ' + message['role']) }}"
    "{% else %}"
    "{{ '<|' + message['role'] + '|>' + ((message['content'] or '') | trim) }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ '<tool_call>' + ({'name': call['function']['name'], "
    "'arguments': call['function']['arguments']} | tojson) + '</tool_call>' }}"
    "{% endfor %}"
    "{{ '<|end|>' }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Learn a vocabulary of the given size, special tokens and the 256 bytes included."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a token that must exist."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"{token} is not in the vocabulary")
    return int(found)


def save(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write ``tokenizer.json`` and the configuration that ``transformers`` reads."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "additional_special_tokens": [USER, ASSISTANT, SYSTEM, END],
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")

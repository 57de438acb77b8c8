"""Small random encoders, and a tokenizer for them with a template for pairs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

_MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_WORDS = ["a", "bird", "that", "swims", "stone", "the", "##s", "cat", "fish", "penguin", ".", ","]
_SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
# By the name of the config class in transformers, before "Config".
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "Bert": _SIZES,
    "Roberta": {**_SIZES, "type_vocab_size": 1},
    "MPNet": {**_SIZES, "pad_token_id": 1},
    "DistilBert": {
        "vocab_size": 40,
        "dim": 32,
        "n_layers": 2,
        "n_heads": 4,
        "hidden_dim": 48,
        "max_position_embeddings": 64,
        "initializer_range": 0.3,
    },
    "ModernBert": {
        **_SIZES,
        "global_attn_every_n_layers": 2,
        "local_attention": 8,
        "initializer_cutoff_factor": 2.0,
        "cls_token_id": 2,
        "sep_token_id": 3,
        "bos_token_id": 2,
        "eos_token_id": 3,
    },
    # As EmbeddingGemma, a decoder whose tokens see what is behind them too.
    "Gemma3Text": {
        **_SIZES,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention"],
        "use_bidirectional_attention": True,
    },
    "FNet": {**_SIZES, "tpu_short_seq_length": 64},
}


def make_encoder(family: str, directory: Path, head: str = "Model", **more: Any) -> Path:
    """Save such a model with a head, "Model" for none, and a tokenizer; the same every time."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**FAMILIES[family], **more)
    model = getattr(transformers, family + head)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape))
    model.save_pretrained(directory)
    names = ["input_ids", "attention_mask"]
    if family == "Bert":
        names.append("token_type_ids")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer(), model_input_names=names, pad_token="[PAD]"
    ).save_pretrained(directory)
    return directory


def tokenizer() -> Any:
    """A WordPiece of a few words, as BERT's."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    words = {word: number for number, word in enumerate([*_MARKS, *_WORDS])}
    made = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    made.add_special_tokens(_MARKS)
    return made

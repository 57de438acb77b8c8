"""Encoders (BERT and its like), computed by ``transformers``: states of whole texts, or labels.

Every token sees all others of its text, later ones too. So a text is computed at once, and no keys
and values are kept.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from quire.core.errors import ModelError, reason
from quire.models.base import checked_max_positions
from quire.models.config import ModelConfig
from quire.models.transformers_loading import encoder_base, load_encoder_module, sees_both_ways
from quire.models.weights import Weights

_JUDGE = "ForSequenceClassification"
_LONGEST = 2**24  # tokens
# Norm of the difference over norm of what is compared. For rounding: seeing what pads a batch
# gives errors near 1.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


class TextBatch(NamedTuple):
    """Texts side by side, padded to the longest.

    token_ids [B, T] int64. present [B, T] bool: what is a text's; None: all of it is.
    types [B, T] int64: 1 in the second text of a pair; None: there are no pairs.
    """

    token_ids: Tensor
    present: Tensor | None = None
    types: Tensor | None = None


class EncoderModel:
    """An encoder, or one with a head that classifies texts.

    width: numbers of a state, or labels. labels: of the head; 0: there is none.
    has_types: whether it distinguishes the tokens of a pair's second text.
    """

    eos_token_ids: tuple[int, ...] = ()

    def __init__(
        self, config: ModelConfig, module: Any, max_model_len: int | None, usual: int | None = None
    ) -> None:
        """Take over ``module``. ModelError: it is not one of the known kinds of encoders.

        max_model_len: the longest text; None: ``usual``, or as long as there are positions.
        """
        name, both_ways = type(module).__name__, sees_both_ways(module.config.to_dict())
        if encoder_base(name) is None and not both_ways:
            raise ModelError(f"{config.fields.source}: {name} is no encoder")
        self._module, known = module, module.config
        limit = _position_limit(config, module)
        self.max_positions = checked_max_positions(max_model_len, min(usual or limit, limit), limit)
        self.dtype: torch.dtype = module.dtype
        self.device = torch.device("cpu")
        self.weight_bytes = sum(t.nbytes for t in (*module.parameters(), *module.buffers()))
        self.vocab_size: int = module.get_input_embeddings().num_embeddings
        self.labels = known.num_labels if config.architecture.endswith(_JUDGE) else 0
        pad = known.pad_token_id
        self.pad_token_id = pad if isinstance(pad, int) and 0 <= pad < self.vocab_size else 0
        types = getattr(known, "type_vocab_size", 0)
        takes = inspect.signature(module.forward).parameters
        self.has_types = "token_type_ids" in takes and isinstance(types, int) and types > 1
        with torch.inference_mode():
            self.width = self._check(config.architecture)

    @classmethod
    def load(
        cls,
        config: ModelConfig,
        weights: Weights,
        max_model_len: int | None,
        usual: int | None,
        admit: Callable[[int], None],
    ) -> EncoderModel:
        """Load the checkpoint of ``weights``, in its dtype.

        admit: called with the bytes that will be taken, to refuse them. ModelError: see
            ``__init__``.
        """
        module = load_encoder_module(
            config, weights, admit, classifies=config.architecture.endswith(_JUDGE)
        )
        return cls(config, module, max_model_len, usual)

    def to(self, device: torch.device) -> EncoderModel:
        """The same model, its weights moved to ``device``."""
        self._module.to(device)
        self.device = device
        return self

    def forward(self, batch: TextBatch) -> Tensor:
        """States [B, T, width], undefined for padding; or logits [B, labels]."""
        given = {"input_ids": batch.token_ids}
        if batch.present is not None:
            given["attention_mask"] = batch.present.long()
        if batch.types is not None:
            given["token_type_ids"] = batch.types
        output = self._module(**{name: part.to(self.device) for name, part in given.items()})
        result: Tensor = output.logits if self.labels else output.last_hidden_state
        return result

    def _check(self, name: str) -> int:
        """The width of states. ModelError: what pads a text changes it, or it sees only one way."""
        length = min(9, self.max_positions)
        ids = [one for one in range(self.vocab_size) if one != self.pad_token_id][-length:]
        long = torch.tensor([ids])
        short = long[:, : max(1, length // 2)]
        together = torch.full((2, length), self.pad_token_id)
        together[0], together[1, : short.shape[1]] = long[0], short[0]
        present = torch.arange(length) < torch.tensor([[length], [short.shape[1]]])
        try:
            whole, alone = self.forward(TextBatch(long)), self.forward(TextBatch(short))
            both = self.forward(TextBatch(together, present))
        except Exception as error:  # the architecture's code may raise anything
            raise ModelError(f"{name} cannot be computed: {reason(error)}") from error
        part = both[1:] if self.labels else both[1:, : short.shape[1]]
        off = float((part - alone).norm() / alone.norm())
        if not off <= _TOLERANCE[self.dtype]:  # nor is NaN
            raise ModelError(
                f"{name} is not served: beside a longer text, what it gives for one differs by "
                f"{off:.2g} of its norm"
            )
        if not self.labels and length > 1 and torch.equal(whole[0, 0], alone[0, 0]):
            raise ModelError(f"{name} is not served: its tokens do not see those behind them")
        return whole.shape[-1]


def _position_limit(config: ModelConfig, module: nn.Module) -> int:
    """Tokens that a text may have: some tables begin behind the position of what pads."""
    for name, part in module.named_modules():
        if name.endswith("position_embeddings") and isinstance(part, nn.Embedding):
            return part.num_embeddings - (0 if part.padding_idx is None else part.padding_idx + 1)
    return min(config.fields.positive("max_position_embeddings"), _LONGEST)

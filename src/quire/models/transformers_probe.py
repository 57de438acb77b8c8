"""Finds out what an architecture in ``transformers`` asks of attention, by running it once.

The probe takes the place of attention. In place of a mask, its mask function returns the predicate
from which the mask would be made, so that a layer's window can be read off at any length without
running that many tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from quire.core.errors import ModelError, reason
from quire.kernels.layer_memory import KVShape
from quire.kernels.ops import AttentionSpec

# (batch, head, query, key) -> does the query see the key; tensors that broadcast.
_Predicate = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

# Keyword arguments of attention that add nothing to the batch and to what the probe reads.
_HARMLESS = frozenset(
    {
        "cache_position",
        "dropout",  # zero outside of training
        "is_causal",  # read off the mask
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_embeddings",  # applied before attention is called
        "position_ids",
        "return_dict",
        "sliding_window",  # read off the mask
        "use_cache",
    }
)


@dataclass
class Probe:
    """The layers of an architecture in the order they call attention."""

    architecture: str
    max_positions: int
    shapes: list[KVShape] = field(default_factory=list)
    specs: list[AttentionSpec] = field(default_factory=list)
    unusual: str = ""  # what its config has that no other has

    def refuse_raised(self, what: str, error: Exception) -> ModelError:
        """The error of code that raised one, and what may be behind that."""
        beside = f"; its config has {self.unusual}" if self.unusual else ""
        return self.refuse(f"{what}: {reason(error)}{beside}")

    def refuse(self, feature: str) -> ModelError:
        """The error that names the architecture and what it needs."""
        return ModelError(f"{self.architecture} is not supported: {feature}")


def probe_mask(*, mask_function: _Predicate, **_: Any) -> _Predicate:
    """A mask function for ``transformers.AttentionMaskInterface``."""
    return mask_function


def probe_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: _Predicate | None,
    *,
    quire_probe: Probe | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **keywords: Any,
) -> tuple[Tensor, None]:
    """An attention function for ``transformers.AttentionInterface``.

    query [1, H, T, D], key [1, Hkv, T, D], value [1, Hkv, T, Dv] -> zeros [1, T, H, Dv].
    s_aux [H]: scores of a key that all see, without a value.

    Raises:
        ModelError: the layer asks for something that paged attention does not do.
    """
    if quire_probe is None:
        raise TypeError(f"{type(module).__name__} keeps the decoder's keyword arguments to itself")
    unknown = {name for name, given in keywords.items() if given is not None} - _HARMLESS
    if unknown:
        raise quire_probe.refuse(f"its attention takes {', '.join(sorted(unknown))}")
    _, kv_heads, tokens, key_dim = key.shape
    value_dim = value.shape[3]
    scale = key_dim**-0.5 if scaling is None else float(scaling)
    window = _window(attention_mask, quire_probe)
    quire_probe.shapes.append(KVShape(kv_heads, key_dim, value_dim))
    sinks = None if s_aux is None else s_aux.detach().float().contiguous()
    quire_probe.specs.append(AttentionSpec(scale, window, softcap=softcap, sink_logits=sinks))
    return value.new_zeros(1, tokens, query.shape[1], value_dim), None


def _window(predicate: _Predicate | None, probe: Probe) -> int | None:
    """The window that ``predicate`` is, up to the longest sequence; None if all before is seen."""
    if not callable(predicate):
        raise probe.refuse("its attention mask is not made by transformers' mask interface")
    length = probe.max_positions
    keys, zero = torch.arange(length), torch.tensor(0)
    window = length
    for query in (length - 1, max(0, length - 2), length // 2):
        seen = predicate(zero, zero, torch.tensor(query), keys)
        if query == length - 1:
            window = int(seen.sum())
        # A chunk looks like a window from its last token, though not from the one before.
        if not torch.equal(seen, (keys <= query) & (keys > query - window)):
            raise probe.refuse("its attention mask is neither causal nor a sliding window")
    return None if window == length else window

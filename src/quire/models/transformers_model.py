"""Any other decoder: its code in ``transformers``, with our attention in place of its own.

``transformers`` calls attention through an interface: a function that gets queries, keys, values,
and the keyword arguments that were given to the decoder. A step travels as one of them. Products,
norms, MLPs and what is around attention are modules, and ours take their places.

An architecture may use attention in ways that paged attention does not know. So a probe records at
loading what each layer asks for and refuses what is unknown; then a few tokens must come out of
paged attention as they come out of the architecture's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from quire.core.errors import ConfigError, ModelError, RankError, reason
from quire.kernels.dispatch import choose_kernels
from quire.kernels.heap import give_memory_back
from quire.kernels.layer_memory import LayerKV
from quire.kernels.ops import AttentionBatch, Kernels, Texts
from quire.kernels.ranks import Ranks
from quire.models.base import ExpertFacts, checked_max_positions
from quire.models.config import ModelConfig
from quire.models.linear import LinearReader
from quire.models.selfcheck import check_against, run_far, sample_texts
from quire.models.shape import unusual
from quire.models.shard import Shard
from quire.models.transformers_attention import (
    Candidates,
    PagedStep,
    fused_attention,
    paged_attention,
)
from quire.models.transformers_choices import Choices
from quire.models.transformers_experts import put_experts
from quire.models.transformers_layers import fused_layers
from quire.models.transformers_loading import LeftInFiles, load_causal_lm
from quire.models.transformers_parts import put_parts
from quire.models.transformers_probe import Probe, probe_attention, probe_mask
from quire.models.transformers_products import (
    JoinedProduct,
    Running,
    plain_head,
    put_products,
)
from quire.models.transformers_ranks import HeldLayers, RankDivision
from quire.models.weights import Weights

# The names under which transformers finds our attention, and the probe.
_PAGED = "quire"
_PROBE = "quire_probe"

# Of layers that texts as short as those of the check show as they are.
_KINDS = frozenset({"full_attention", "sliding_attention", "chunked_attention", "attention"})

_LONGEST = 2**24  # tokens; windows are probed over as many


class TransformersModel:
    """A ``Model`` computed by ``transformers``."""

    # Sequences end where a rotation would begin to stretch with their length: see _position_limit.
    kv_depends_on_prompt_length = False
    experts: ExpertFacts | None = None  # there may be some, but its code alone knows
    has_head = True
    vector_width = None
    replayable = False  # what an architecture's code does, nobody knows

    def __init__(
        self,
        config: ModelConfig,
        causal_lm: Any,
        max_model_len: int | None,
        running: Running,
        packed_bytes: int = 0,
        products: Sequence[JoinedProduct] = (),
        division: RankDivision | None = None,
    ) -> None:
        """Take over ``causal_lm``, a ``transformers`` model with its own, eager, attention.

        running: what modules of ours in it look at. packed_bytes: of the weights in these.
        products: those of its linear layers. division: among ranks.

        Raises:
            ModelError: the architecture needs more than paged attention gives it.
        """
        check_kinds(config.architecture, causal_lm.config)
        limit = _position_limit(config, causal_lm)
        self.max_positions = checked_max_positions(max_model_len, limit, limit)
        self.eos_token_ids = config.eos_token_ids
        self.dtype: torch.dtype = causal_lm.dtype
        kept = (*causal_lm.parameters(), *causal_lm.buffers())
        self.weight_bytes = packed_bytes + sum(tensor.nbytes for tensor in kept)
        self.token_bytes = self.weight_bytes  # as far as is known
        self.products = products
        self._running = running
        probe = Probe(config.architecture, self.max_positions, unusual=unusual(config.fields))
        texts = sample_texts(causal_lm.get_input_embeddings().num_embeddings)
        choices = Choices()
        with torch.inference_mode():
            try:
                with choices.kept():
                    own = causal_lm(texts, use_cache=False).logits.float()
            except Exception as error:  # the architecture's code may raise anything
                raise probe.refuse_raised("it cannot compute", error) from error
            self.vocab_size = own.shape[2]
            self._decoder = causal_lm.base_model
            if self._decoder is causal_lm:
                raise probe.refuse("its decoder and its head are one module")
            output_type = _run_probe(causal_lm, texts[0], probe)
            setattr(causal_lm, causal_lm.base_model_prefix, _Given(output_type))
            self._head = causal_lm
            self.kv_shapes = tuple(probe.shapes)
            self._specs = tuple(probe.specs)
            self.windows = tuple(spec.window for spec in self._specs)
            try:
                self._plain_head = plain_head(causal_lm)
                check = partial(check_against, self, texts, own, choices, running.kernels)
                self._fuse(texts, check)
                if division is not None:
                    self._divide(division)
                    check(rounded=division.linears.rounds)  # parts, each by itself
            except (ConfigError, RankError):
                raise
            except Exception as error:  # the architecture's code may raise anything
                raise probe.refuse(reason(error)) from error

    @classmethod
    def load(
        cls,
        config: ModelConfig,
        weights: Weights,
        max_model_len: int | None,
        linears: LinearReader,
        instruction_set: str = "",
        ranks: Ranks | None = None,
    ) -> TransformersModel:
        """Load the checkpoint of ``weights``, in its dtype.

        linears: packs the weights of products; where it does not, PyTorch multiplies.
        instruction_set: of the kernels. ranks: each has a part of what is ours.

        Raises:
            ConfigError: ranks do not divide it.
            ModelError: ``transformers`` cannot load it as a decoder, tensors are missing or left
        over, or the architecture needs more than paged attention gives it.
        """
        _register()
        running = Running(choose_kernels(weights.dtype, instruction_set), ranks)
        shard = Shard() if ranks is None else Shard(ranks.rank, ranks.size)
        if not linears.packs and ranks is not None:
            raise ConfigError("tensor_parallel_size needs the C++ kernels; allowed: 1")
        if not linears.packs:
            return cls(config, load_causal_lm(config, weights), max_model_len, running)
        left = LeftInFiles(weights)
        causal_lm = load_causal_lm(config, weights, left)
        texts = sample_texts(causal_lm.get_input_embeddings().num_embeddings)
        run = partial(causal_lm, texts, use_cache=False)
        products = put_products(causal_lm, run, linears, left, running)
        exact = choose_kernels(torch.float32, instruction_set)
        put_parts(causal_lm, running, exact)
        packed_bytes = linears.nbytes  # without experts, which are packed more than once
        packed_bytes += put_experts(causal_lm, linears, running, exact, shard)
        division = None if ranks is None else RankDivision(shard, linears, config.architecture)
        return cls(config, causal_lm, max_model_len, running, packed_bytes, products, division)

    def _fuse(self, texts: Tensor, check: Callable[[], None]) -> None:
        """Put our attention and layers in the place of what gives the same."""
        attention = Candidates(self._decoder, fused_attention, exactly=False)
        check()
        run_far(self, texts, self._running.kernels)
        attention.settle()
        layers = Candidates(self._decoder, fused_layers, exactly=True)
        run_far(self, texts, self._running.kernels)
        layers.settle()

    def _divide(self, division: RankDivision) -> None:
        before = sum(one.product.nbytes for one in self.products)
        whole = HeldLayers(self.kv_shapes, self._specs)
        self.kv_shapes, self._specs = division.divide(self._decoder, whole)
        self.weight_bytes += sum(one.product.nbytes for one in self.products) - before
        self.token_bytes = self.weight_bytes
        give_memory_back()

    def to(self, device: torch.device) -> TransformersModel:
        """The same model, its weights moved to ``device``."""
        self._decoder.to(device)
        self._head.to(device)
        self._specs = tuple(
            replace(spec, sink_logits=spec.sink_logits.to(device))
            if spec.sink_logits is not None
            else spec
            for spec in self._specs
        )
        return self

    def forward(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        kv: Sequence[LayerKV],
        kernels: Kernels,
    ) -> Tensor:
        step = PagedStep(kv, kernels, kernels.plan(batch), self._specs)
        self._running.kernels, self._running.adapted = kernels, batch.adapted
        output = self._decoder(
            input_ids=token_ids[None],
            position_ids=batch.positions[None],
            use_cache=False,
            quire_step=step,
        )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    def go_on(
        self, texts: Texts, kv: Sequence[LayerKV], kernels: Kernels, vocab_size: int
    ) -> Tensor | None:
        return None

    def logits(self, hidden: Tensor) -> Tensor:
        """See ``Model.logits``. The architecture's own code scales and caps them."""
        if self._plain_head is not None:
            return self._plain_head(hidden)
        logits: Tensor = self._head(inputs_embeds=hidden[None], use_cache=False).logits[0]
        return logits.float()


class _Given(nn.Module):
    """Replaces a decoder whose hidden states are known, so that only the head computes."""

    def __init__(self, output_type: type) -> None:
        super().__init__()
        self.output_type = output_type

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"its head looks into its decoder, for {name}")

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> Any:
        return self.output_type(last_hidden_state=inputs_embeds)


def _run_probe(causal_lm: Any, text: Tensor, probe: Probe) -> type:
    """Fill ``probe``, switch to paged attention, and return the type of the decoder's output."""
    causal_lm.set_attn_implementation(_PROBE)
    try:
        output = causal_lm.base_model(
            input_ids=text[None],
            position_ids=torch.arange(len(text))[None],
            use_cache=False,
            quire_probe=probe,
        )
    except ModelError:
        raise
    except Exception as error:  # the architecture's code may raise anything
        raise probe.refuse_raised("other attention does not fit in", error) from error
    if not probe.specs:
        raise probe.refuse("its attention does not go through transformers' attention interface")
    causal_lm.set_attn_implementation(_PAGED)
    return type(output)


def check_kinds(architecture: str, config: Any) -> None:
    """ModelError if some layers attend in a way that texts as short as those of the check do not
    show: to what an index chooses, or to pieces of a text that are compressed.
    """
    kinds = set(map(str, getattr(config, "layer_types", None) or ())) - _KINDS
    if kinds:
        raise ModelError(
            f"{architecture} is not supported: it has layers of a kind that is not computed here: "
            f"{', '.join(sorted(kinds))[:100]}"
        )


def _position_limit(config: ModelConfig, causal_lm: Any) -> int:
    """Tokens that a sequence may have."""
    limit = getattr(causal_lm.config, "max_position_embeddings", None)
    if not isinstance(limit, int):
        raise ModelError(
            f"{config.architecture} is not supported: it has no max_position_embeddings, as is so "
            "where positions are ALiBi biases or there is no attention"
        )
    rope = getattr(causal_lm.config, "rope_parameters", None) or {}
    # Beyond the original length the whole batch would rotate as its longest sequence does.
    for part in (rope, *rope.values()):
        if isinstance(part, dict) and part.get("rope_type") == "longrope":
            limit = min(limit, int(part["original_max_position_embeddings"]))
    return min(limit, _LONGEST)


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(_PAGED, paged_attention)
    AttentionInterface.register(_PROBE, probe_attention)
    AttentionMaskInterface.register(_PROBE, probe_mask)  # without one, as _PAGED, no mask is made

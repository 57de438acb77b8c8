"""What there is to say of the models that one kind of GGUF file holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

EXPERTS = "expert_count"

RMS = ("attention.layer_norm_rms_epsilon", "rms_norm_eps")
LAYER_NORM = ("attention.layer_norm_epsilon", "layer_norm_eps")


@dataclass(frozen=True)
class Architecture:
    """``general.architecture``, and what transformers calls it.

    Names of metadata are those after the architecture's.
    """

    name: str
    model_type: str
    class_name: str
    # The field that is above zero in its files, where others have the same name without it.
    told_by: str | None = None
    # Rows of queries and keys are in the order in which neighbours are rotated with each other.
    interleaved: bool = False
    norms_with_one: bool = False  # norms are stored with the 1 that the family adds to them
    # Tensors of a layer that its family calls otherwise than Llama's; {} is an expert's number.
    names: Mapping[str, str] = field(default_factory=dict)
    eps: tuple[str, str] = RMS  # in metadata and in config.json
    # Of config.json, by names in metadata: what its files have beside what all have.
    fields: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)  # what its files do not say
    # Queries are scaled by the width of a head, but in the model with this many layers by that of
    # the decoder's share for one.
    scaled_by_share: int | None = None
    local_theta: float | None = None  # layers with a window have a rotation of their own
    alike_theta: bool = False  # as above, of the same base, and never stretched
    states: str | None = None  # what layers that keep a state are called; None: none does
    alone: bool = False  # a layer is one part: an MLP is a layer of its own
    latent: bool = False  # keys and values are made of one vector
    sigmoid: bool = False  # that is what scores of experts are, and not a softmax
    whole_yarn: bool = True  # dimensions between which YaRN blends are whole
    # The weight of YaRN's logarithm, ``mscale_all_dim``, for 1 in its files.
    yarn_weight: float | None = None
    growth: float | None = None  # of queries, with their positions, where its files do not say
    # What positions past the original ones are multiplied by, whatever its files say.
    longrope_factor: float | None = None
    # A count in metadata that tells what its files do not say, at which value, and what.
    told_by_count: tuple[str, int, Mapping[str, Any]] | None = None
    # Truths of config.json that tensors of layers tell, beside those of all families.
    told_by_tensors: Mapping[str, str] = field(default_factory=dict)
    # Lists of metadata, by their whole names: a number of each layer, which is a tensor elsewhere.
    numbers: Mapping[str, str] = field(default_factory=dict)
    aside: tuple[str, ...] = ()  # what its files say to nobody
    by_layer: bool = False  # sizes differ from layer to layer
    streams: bool = False  # so may those of MLPs, and layers see one of several streams

    @property
    def has_experts(self) -> bool:
        """Whether its MLPs are mixtures."""
        return self.told_by is not None and self.told_by.startswith("expert_")

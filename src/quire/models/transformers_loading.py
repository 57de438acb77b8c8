"""A checkpoint into the module that ``transformers`` has for it.

It is given the tensors, not the files: those it would map, and a file that is cut or written over
while its model is served would end the process, or change the model in silence.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from reprlib import repr as short
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from quire.core.errors import ModelError, reason
from quire.models.config import ModelConfig
from quire.models.shape import unusual
from quire.models.weights import Weights, adds_nothing

# Fields that say what vectors a model gives, of which transformers knows nothing.
_OF_VECTORS = ("is_matryoshka", "matryoshka_dimensions", "classifier_from_token")
_HEADS = ("ForSequenceClassification", "ForMaskedLM", "Model")
_DROPPING = ("StableLmForCausalLM",)  # what is passed to attention does not arrive there
# Of encoders: a state made of the first token's, and what says words.
_ASIDE = (
    "pooler.",
    "cls.",
    "lm_head.",
    "vocab_",
    "head.",
    "decoder.",
    "predictions.",
    "generator_",
)


def check_decoder(config: ModelConfig) -> None:
    """ModelError unless ``transformers`` has such a decoder, and lets its attention be replaced."""
    architecture = config.architecture
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if architecture not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        raise ModelError(
            f"{architecture} is not a decoder that transformers has for language modelling"
            + _instead(config)
        )
    code = sys.modules[getattr(transformers, architecture).__module__]
    if architecture in _DROPPING or not hasattr(code, "ALL_ATTENTION_FUNCTIONS"):
        raise ModelError(
            f"{architecture} is not supported: in transformers, its attention does not go through "
            "the attention interface, or keyword arguments do not reach it"
        )


def _instead(config: ModelConfig) -> str:
    """What to do with a model of another kind, or of which kind it is."""
    architecture = config.architecture
    if architecture.endswith("ForSequenceClassification"):
        return (
            "; of decoders, heads that classify are not computed. A reranker that says yes or no "
            "is served with "
            '--hf-overrides \'{"architectures": ["...ForCausalLM"], "classifier_from_token": '
            '["no", "yes"]}\''
        )
    inner = config.fields.section("text_config")
    found = unusual(inner if inner.values else config.fields)
    whole = (
        "; it sees images, and is none of those whose decoder is served by itself (this one's is "
        f"{short(inner.values.get('model_type'))})"
        if inner.values
        else ""
    )
    return whole + (f"; its config has {found}" if found else "")


def encoder_base(architecture: str) -> str | None:
    """An encoder's name without its head, such as "Bert"; None: it is not an encoder.

    Encoders are what ``transformers`` has for masked language modelling.
    """
    head = next((one for one in _HEADS if architecture.endswith(one)), None)
    if head is None:
        return None
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    base = architecture.removesuffix(head)
    known = MODEL_FOR_MASKED_LM_MAPPING_NAMES.values()
    return base if f"{base}ForMaskedLM" in known else None


def sees_both_ways(values: Mapping[str, Any]) -> bool:
    """Whether a config has made an encoder of a decoder, as EmbeddingGemma's does."""
    return values.get("use_bidirectional_attention") is True


class LeftInFiles:
    """Weights of linear layers that stay in their files until each is read by itself.

    Meanwhile these layers hold tensors that take no memory, and no numbers either.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._names: set[str] = set()
        self._held: dict[int, tuple[Tensor, str]] = {}  # what layers hold, by where it is

    def choose(self, outline: Any) -> None:
        """Choose the layers whose weights the files have by name: these stay in the files."""
        weights, head = self._weights, outline.get_output_embeddings()
        known = {name.removeprefix(weights.prefix): name for name in weights}
        for module_name, module in outline.named_modules():
            if type(module) is not nn.Linear or module is head:
                continue
            own = f"{module_name}.weight"
            for one in (own, own.removeprefix(f"{outline.base_model_prefix}.")):
                alike = one in known and weights.shape(known[one]) == module.weight.shape
                if alike and module.weight.dtype == weights.dtype:
                    self._names.add(known[one])

    def held(self, name: str) -> Tensor | None:
        """What a layer holds in the place of a tensor; None: the tensor itself."""
        if name not in self._names:
            return None
        nothing = torch.full((), torch.nan, dtype=self._weights.dtype)
        self._held[nothing.data_ptr()] = nothing, name
        return nothing.expand(self._weights.shape(name) or ())

    def weight(self, layer: nn.Module) -> Tensor:
        """The weight of a layer. ModelError: it cannot be read."""
        return self.read(layer.get_parameter("weight").data)

    def read(self, held: Tensor) -> Tensor:
        """The weight that a placeholder stands for; any other tensor as it is."""
        nothing, name = self._held.get(held.data_ptr(), (None, ""))
        if nothing is None:
            return held
        return self._weights.as_stored(name).to(self._weights.dtype)


def load_causal_lm(config: ModelConfig, weights: Weights, left: LeftInFiles | None = None) -> Any:
    """A decoder with its own, eager, attention, and its weights. Raises as ``_load`` does.

    left: weights that it is to be without.

    Raises:
        ModelError: ``transformers`` has no such decoder, too.
    """
    from transformers import AutoModelForCausalLM

    check_decoder(config)
    given = {"attn_implementation": "eager"}
    return _load(AutoModelForCausalLM, given, config, weights, left=left)


def load_encoder_module(
    config: ModelConfig,
    weights: Weights,
    admit: Callable[[int], None],
    *,
    classifies: bool,
) -> Any:
    """An encoder, with the head that classifies or without any. Raises as ``_load`` does."""
    from transformers import AutoModel, AutoModelForSequenceClassification

    auto = AutoModelForSequenceClassification if classifies else AutoModel

    def may_differ(name: str) -> bool:
        """Tensors that make something of the first state, and heads for words, are not needed."""
        return not classifies and name.startswith(_ASIDE)

    return _load(auto, {}, config, weights, admit, may_differ=may_differ)


class _Unread(NamedTuple):
    """A tensor that is read when ``transformers`` takes it, as from safetensors' own slices."""

    weights: Weights
    name: str
    left: LeftInFiles | None

    def __getitem__(self, all_of_it: Any) -> Tensor:  # type: ignore[override]
        held = None if self.left is None else self.left.held(self.name)
        return self.weights.as_stored(self.name) if held is None else held

    def get_shape(self) -> list[int]:
        return list(self.weights.shape(self.name) or ())

    def get_dtype(self) -> str:
        return self.weights.stored(self.name)


def _adds_nothing(weights: Weights, own: str) -> bool:
    """Whether a tensor, by its name in the file, adds nothing."""
    names = (own, weights.prefix + own)
    return any(name in weights and adds_nothing(weights, name) for name in names)


def _by_own_names(weights: Weights, left: LeftInFiles | None) -> dict[str, _Unread]:
    return {name.removeprefix(weights.prefix): _Unread(weights, name, left) for name in weights}


def _load(
    auto: Any,
    options: Mapping[str, str],
    config: ModelConfig,
    weights: Weights,
    admit: Callable[[int], None] = lambda num_bytes: None,
    *,
    may_differ: Callable[[str], bool] = lambda name: False,
    left: LeftInFiles | None = None,
) -> Any:
    """A checkpoint in the module that ``auto`` has for it.

    admit: called with the bytes that will be taken, to refuse them. may_differ: whether a tensor
    of this name may be missing or superfluous. left: weights that it is to be without.

    Raises:
        ModelError: ``transformers`` cannot load it, or it lacks tensors that the config asks for.
    """
    from transformers import AutoConfig

    directory = weights.directory
    given = {"dtype": weights.dtype, **options}
    try:
        known, unused = AutoConfig.from_pretrained(
            directory,
            local_files_only=True,
            trust_remote_code=False,
            return_unused_kwargs=True,
            **config.overrides,
        )
        unknown = [str(name) for name in unused if name not in _OF_VECTORS]
        if unknown:
            names = ", ".join(unknown)
            raise ModelError(f"hf_overrides: {config.architecture} has no field {names}")
        with torch.device("meta"):
            outline = auto.from_config(known, trust_remote_code=False, **given)
        _check_sizes(outline, config, weights)
        admit(sum(t.nbytes for t in (*outline.parameters(), *outline.buffers())))
        if left is not None:
            left.choose(outline)
        with _quietly():  # what it has to say of tensors is in the report
            module, report = type(outline).from_pretrained(
                None,
                config=known,
                state_dict=_by_own_names(weights, left),
                output_loading_info=True,
                **given,
            )
    except ModelError:
        raise
    except Exception as error:  # whatever an architecture's code raises, it cannot be used
        raise ModelError(f"{directory}: transformers cannot load it: {reason(error)}") from error
    for fault in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        found = [name for name in map(str, report[fault]) if not may_differ(name)]
        if fault == "unexpected_keys":
            found = [name for name in found if not _adds_nothing(weights, name)]
        if found:
            names = ", ".join(sorted(found)[:5])
            raise ModelError(f"{directory}: {fault.replace('_keys', ' tensors')}: {names}")
    return module.eval().requires_grad_(False)


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence ``transformers``, except for errors."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _check_sizes(outline: nn.Module, config: ModelConfig, weights: Weights) -> None:
    """ModelError if a config asks for far larger tensors than there are, before memory is taken.

    Smaller differences are found when tensors are loaded.
    """
    asked = sum(parameter.numel() for parameter in outline.parameters())
    if asked > 2 * weights.num_elements:  # by up to twice where a tied head counts as its own
        raise ModelError(
            f"{config.fields.source} asks for {asked:,} parameters, but the checkpoint holds "
            f"{weights.num_elements:,}"
        )

"""From a name to a model that can run: the composition root of ``quire.models``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from quire.core.errors import ConfigError, ModelError, ModelNotFoundError
from quire.kernels.compiled import KERNELS, need
from quire.kernels.dispatch import choose_products
from quire.kernels.heap import give_memory_back
from quire.kernels.pages import FilePages
from quire.kernels.products import Products
from quire.kernels.ranks import Ranks
from quire.models import gpt, llama
from quire.models.admission import WeightAdmission
from quire.models.base import Model, checked_max_positions
from quire.models.blueprint import Family
from quire.models.building import build
from quire.models.checkpoint_files import find_files
from quire.models.config import DTYPES, ModelConfig, read_config
from quire.models.decoder import DecoderModel
from quire.models.encoder import EncoderModel
from quire.models.files import check_plain
from quire.models.gguf import is_gguf
from quire.models.hub import MODEL_FILES, choose_gguf, gguf_file, snapshot, split_file
from quire.models.linear import LinearReader, Multiplied, Quantization
from quire.models.linear.checkpoints import GGUF, RoundedProjections, read_checkpoint
from quire.models.observing import observe
from quire.models.shape import check_without_states, find_family, read_stored
from quire.models.shard import Shard
from quire.models.streaming import Streaming
from quire.models.transformers_loading import check_decoder, encoder_base, sees_both_ways
from quire.models.weights import Weights

# Architectures with code of their own; any other decoder runs through transformers.
_FAMILIES = (llama.FAMILY, gpt.FAMILY)
_NATIVE: Mapping[str, Family] = {
    architecture: family for family in _FAMILIES for architecture in family.architectures
}

_CPU = torch.device("cpu")
_DECODER, _ALONE, _JUDGE = "ForCausalLM", "Model", "ForSequenceClassification"


def resolve_model(
    name_or_dir: str | Path, revision: str | None = None, download_dir: str | None = None
) -> Path:
    """The directory of a model: ``name_or_dir`` itself, or a snapshot of that Hugging Face name.

    Or a GGUF file: its path, or ``directory:file`` or ``name:file``, where ``file`` may be a word
    that only one file ends with, such as Q4_K_M.

    download_dir: where snapshots are kept; None: in Hugging Face's own cache.

    Raises:
        ModelError: it is neither a directory nor a repository that can be downloaded or that an
            earlier download left in the cache; or a file in it is no plain one.
    """
    path = Path(name_or_dir).expanduser()
    if path.is_dir() or (is_gguf(path) and path.exists()):
        if revision is not None:
            raise ModelError(f"revision needs a Hugging Face name, and {path} is here")
        for pattern in MODEL_FILES:
            for file in path.glob(pattern):
                check_plain(file)
        return path
    name, wanted = split_file(str(name_or_dir))
    directory = Path(name).expanduser()
    if wanted is not None and directory.is_dir():
        return directory / choose_gguf(name, (file.name for file in directory.iterdir()), wanted)
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        kind = "file" if is_gguf(path) else "directory"
        raise ModelNotFoundError(f"{name_or_dir} is not a {kind}", str(name_or_dir))
    if wanted is not None:
        return gguf_file(name, wanted, revision, download_dir)
    return snapshot(name, revision, download_dir)


def check_servable(directory: Path) -> str:
    """The code that would run the model in ``directory``, "Quire" or "transformers"; reads no
    tensor.

    Raises:
        ModelError: neither would.
    """
    config = _with_head(read_config(directory))
    find_files(directory)
    if _family_of(config) is not None:
        if _is_rounded(config) and not is_gguf(directory):
            read_stored(config.fields.section("quantization_config"))
        return "Quire"
    if not is_encoder(config):
        check_decoder(config)
    return "transformers"


def is_encoder(config: ModelConfig) -> bool:
    """Whether the model reads whole texts, and ``load_encoder`` loads it."""
    if config.architecture.endswith(_ALONE) and sees_both_ways(config.fields.values):
        return True
    name = _with_head(config).architecture
    return name not in _NATIVE and encoder_base(name) is not None


def load_encoder(
    directory: Path,
    dtype: str,
    max_model_len: int | None,
    usual: int | None,
    admit: Callable[[int], None],
    hf_overrides: Mapping[str, Any] | None = None,
) -> EncoderModel:
    """Load the encoder in ``directory``, in main memory; see ``load_model`` for what is alike.

    usual: the longest text where ``max_model_len`` is None and there are as many positions.
    """
    _check_dtype(dtype)
    config = read_config(directory, hf_overrides)
    wanted = DTYPES.get(dtype, config.dtype)
    if _is_rounded(config):
        raise ModelError(f"{config.architecture}: encoders whose weights are rounded are not read")
    weights = Weights(directory, wanted)
    _check_layers(config, weights)
    return EncoderModel.load(config, weights, max_model_len, usual, admit)


def load_model(
    directory: Path,
    dtype: str = "auto",
    max_model_len: int | None = None,
    streaming: Streaming | None = None,
    quantization: str | None = None,
    device: torch.device = _CPU,
    admit: Callable[[int], None] = lambda num_bytes: None,
    instruction_set: str = "",
    hf_overrides: Mapping[str, Any] | None = None,
    ranks: Ranks | None = None,
    experts_path: Path | None = None,
) -> Model:
    """Load the model in ``directory``, which holds config.json and safetensors, or of a GGUF file.

    Args:
        dtype: "auto" (the checkpoint's own), or a name in ``quire.models.config.DTYPES``.
        max_model_len: the longest sequence to serve, in tokens; None is what the config says.
        streaming: attend to attention sinks and a window only; None is as the config says.
        quantization: how to round the weights, a value of ``Quantization``; None leaves them.
        device: where its weights are to be.
        admit: called with the bytes of the weights before they are taken, to refuse them.
        instruction_set: of the kernels that compute in main memory; by default the best.
        hf_overrides: over the fields of config.json.
        ranks: each loads a part, and computes with the others; None: there is one.
        experts_path: where a mixture's experts are kept, in a file; None: in memory.

    Raises:
        ConfigError: it cannot be had in ``dtype``, as ``streaming`` or ``quantization`` say, or
            with ``ranks``, or ``experts_path`` cannot hold its experts.
        ModelError: the model cannot be used; the message names the file, field or tensor.
    """
    _check_dtype(dtype)
    config = _with_head(read_config(directory, hf_overrides))
    family = _family_of(config, device.type)
    rounded = _is_rounded(config) or quantization is not None
    shard = Shard() if ranks is None else Shard(ranks.rank, ranks.size)
    check_divides(config, shard.size, device.type)
    if family is None:
        _check_foreign(config, streaming, in_file=experts_path is not None)
    if rounded and device.type != "cpu":
        raise ModelError(f"quantised weights are for --device cpu, and this is {device.type}")
    products = choose_products(instruction_set) if device.type == "cpu" else None
    wanted = DTYPES.get(dtype, config.dtype)
    weights = Weights(directory, wanted, _CPU if family is None else device)
    _check_layers(config, weights)
    of_experts = _products_of_experts(experts_path, products, instruction_set)
    held = Shard() if family is None else shard  # what transformers makes is whole at first
    linears = _read_linears(config, weights, products, quantization, held, of_experts)
    exact, whole = products is not None and not rounded, family is None
    ask = WeightAdmission(weights, linears, held).ask
    ask(admit, quantization, experts_path, may_round=exact, whole_experts=whole)
    others = None if shard.is_whole else ranks
    if family is None:
        return _load_foreign(
            config, weights, max_model_len, linears, instruction_set, others, device
        )
    if linears.weighs_inputs and family.read(config).mixture is None:
        linears.multiplied = _seen(family, config, weights, max_model_len, others, instruction_set)
    return _build(family, config, weights, linears, max_model_len, streaming, others)


def _products_of_experts(
    path: Path | None, products: Products | None, instruction_set: str
) -> Products | None:
    """The products that pack experts into a file; None: experts are kept like all else."""
    if path is None:
        return None
    if products is None:
        need(KERNELS, "experts_path needs the kernels", "leave it out")
        raise ConfigError("experts_path is for CPUs")
    return choose_products(instruction_set, FilePages(path).piece)


def _check_dtype(name: str) -> None:
    if name != "auto" and name not in DTYPES:
        raise ConfigError(f"dtype is {name!r}; allowed: auto, {', '.join(sorted(DTYPES))}")


def check_divides(config: ModelConfig, size: int, device: str = "cpu") -> None:
    """Check that this many ranks can divide a model, without its tensors.

    Raises:
        ConfigError: they cannot; the message names the field that they do not divide.
    """
    if size == 1:
        return
    family = _family_of(config)
    if device != "cpu":
        raise ConfigError(f"tensor_parallel_size is {size}; allowed on {device}: 1")
    if family is None:
        return  # known once transformers has made modules of it
    family.read(config).divided.check(size, config.fields.source)


def _family_of(config: ModelConfig, device: str = "cpu") -> Family | None:
    """The model's family; None: transformers' code has to compute it."""
    family = _NATIVE.get(config.architecture)
    if family is None or family.lacks(config) is not None:
        return None
    known = find_family(config.architecture, "")
    # The kernels of GPUs attend to no latents, nor to what other layers keep.
    on_cpus = known is not None and (known.latent or known.by_layer)
    return None if on_cpus and device != "cpu" else family


def _with_head(config: ModelConfig) -> ModelConfig:
    """A decoder that was saved by itself, "Qwen3Model", as one whose head is its embedding.

    Nobody asks that head for tokens. A model that judges pairs of texts by the tokens that it would
    say next, as vLLM has it ("Qwen3ForSequenceClassification", classifier_from_token), has its own.
    """
    name, fields = config.architecture, config.fields
    judge = name.removesuffix(_JUDGE) + _DECODER
    if name.endswith(_JUDGE) and judge in _NATIVE and "classifier_from_token" in fields:
        return replace(config, architecture=judge)
    whole = name.removesuffix(_ALONE) + _DECODER
    if not name.endswith(_ALONE) or whole not in _NATIVE:
        return config
    tied = fields.holding({**fields.values, "tie_word_embeddings": True})
    return replace(config, architecture=whole, fields=tied, has_head=False)


def _check_foreign(config: ModelConfig, streaming: Streaming | None, *, in_file: bool) -> None:
    """ConfigError if a setting needs our own code and the model has only transformers'."""
    check_without_states(config.fields)
    name = config.architecture
    family = _NATIVE.get(name)
    if family is not None:
        name = f"{name} with {family.lacks(config) or 'what its layers keep, on GPUs,'}"
    if streaming is not None:
        raise ConfigError(
            f"window needs a model with rotary positions and code of its own here; {name} is "
            "none (docs/reference/families.md lists those that have)"
        )
    if in_file:
        raise ConfigError(
            f"experts_path is for mixtures with code of their own here, and {name} has none"
        )
    if _is_rounded(config):
        raise ModelError(
            "weights that are rounded already are for architectures with code of their own "
            f"(docs/reference/families.md lists them); this is {name}. Of its own weights "
            "--quantization makes rounded ones"
        )


def _load_foreign(
    config: ModelConfig,
    weights: Weights,
    max_model_len: int | None,
    linears: LinearReader,
    instruction_set: str,
    ranks: Ranks | None,
    device: torch.device,
) -> Model:
    """Load a model of transformers'; its checks run here, in the architecture's own code."""
    from quire.models.transformers_model import TransformersModel

    load = TransformersModel.load
    model = load(config, weights, max_model_len, linears, instruction_set, ranks).to(device)
    give_memory_back()
    return model


def _seen(
    family: Family,
    config: ModelConfig,
    weights: Weights,
    max_model_len: int | None,
    ranks: Ranks | None,
    instruction_set: str,
) -> Mapping[str, Multiplied]:
    """What ``observe`` sees of a model as it is stored, of which no projection is kept."""
    weights = Weights(weights.directory, weights.dtype)
    shard = Shard() if ranks is None else Shard(ranks.rank, ranks.size)
    linears = LinearReader(weights, None, shard=shard, watched=True)
    model = _build(family, config, weights, linears, max_model_len, None, ranks)
    return observe(model, instruction_set)


def _build(
    family: Family,
    config: ModelConfig,
    weights: Weights,
    linears: LinearReader,
    max_model_len: int | None,
    streaming: Streaming | None,
    ranks: Ranks | None,
) -> DecoderModel:
    """Build a decoder. Whatever the config rules out is refused before tensors are read."""
    described = family.read(config)
    longest, limit, _ = described.positions
    if streaming is not None and described.divided.states is not None:
        raise ConfigError("window: this model has layers that keep a state of the whole text")
    if streaming is not None and described.latent is not None and described.latent.index:
        raise ConfigError("window: an index chooses what this model's tokens attend to")
    if streaming is not None:
        streaming.check(described.ropes, described.windows, limit)
    max_positions = checked_max_positions(max_model_len, longest, limit)
    decoder = build(described, weights, linears)
    told_apart = max_positions if streaming is None else streaming.reach
    ropes = tuple(rope.serving(told_apart) for rope in decoder.ropes)
    decoder = replace(decoder, ropes=ropes, ranks=ranks)
    if not linears.watched:
        weights.finish()
    if streaming is not None:
        decoder = streaming.applied(decoder)
    give_memory_back()  # what rounding and packing took in between, before the pool is measured
    weight_bytes = weights.bytes_taken + linears.nbytes
    ends, named, has_head = config.eos_token_ids, linears.named, config.has_head
    return DecoderModel(decoder, max_positions, ends, weight_bytes, named, has_head=has_head)


def _check_layers(config: ModelConfig, weights: Weights) -> None:
    """ModelError for more layers than the checkpoint has tensors, before anything is made of them.

    What else a config says of sizes is compared with the shapes of tensors as they are read.
    """
    for name in ("num_hidden_layers", "num_layers", "n_layer", "n_layers"):
        if name in config.fields and config.fields.positive(name) > weights.num_tensors:
            raise ModelError(
                f"{config.fields.source}: {name} is {config.fields.positive(name):,}, but the "
                f"checkpoint has only {weights.num_tensors:,} tensors"
            )


def _is_rounded(config: ModelConfig) -> bool:
    return "quantization_config" in config.fields


def _read_linears(
    config: ModelConfig,
    weights: Weights,
    products: Products | None,
    quantization: str | None,
    shard: Shard,
    of_experts: Products | None,
) -> LinearReader:
    rounded = _is_rounded(config)
    if products is None and (rounded or quantization is not None):
        need(KERNELS, "quantised weights need the kernels", "choose a model's own weights")
    rounding = None if quantization is None else Quantization(quantization)
    if rounded and rounding is not None and not rounding.rounds_rows:
        raise ConfigError(
            f"quantization is {quantization!r}, but the weights in {weights.directory} are "
            "quantised already; leave the option out, or write w8a8 to have activations rounded too"
        )
    checkpoint: RoundedProjections | None = None
    if rounded and is_gguf(weights.directory):
        checkpoint = GGUF(weights)
    elif rounded:
        checkpoint = read_checkpoint(config.fields.section("quantization_config"), weights)
    return LinearReader(weights, products, rounding, checkpoint, shard, of_experts)

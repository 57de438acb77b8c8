"""What a model is, read from its config.json: one reader for loader, engine and planner."""

from quire.models.shape.by_layer import (
    LayerSizes,
    filled_in,
    layer_sizes_of,
    sizes_by_kind,
    stream_sizes_of,
    widest,
)
from quire.models.shape.checkpoint import (
    SAMPLING_DEFAULTS,
    Checkpoint,
    read_checkpoint,
    sampling_defaults,
)
from quire.models.shape.config_file import config_files
from quire.models.shape.experts import ExpertShape, experts_of
from quire.models.shape.families import FAMILIES, FamilyFacts, find_family
from quire.models.shape.fields import WIDEST, ConfigFields, read_fields
from quire.models.shape.latent import IndexShape, LatentShape, index_of, latent_of
from quire.models.shape.model_shape import (
    BYTES,
    MOST_BITS,
    ROUNDINGS,
    CacheShape,
    ModelShape,
    WeightForm,
    least_bits,
    plain_form,
    rounded_form,
)
from quire.models.shape.modules import modules_of
from quire.models.shape.positions import Positions, positions_of
from quire.models.shape.reader import read_shape, shape_of, unusual
from quire.models.shape.recurrence import (
    RecurrenceShape,
    check_without_states,
    recurrence_of,
)
from quire.models.shape.stored import Scheme, StoredWeights, read_stored
from quire.models.shape.windows import ChunkLength, layers_that_turn, windows_in_force, windows_of

__all__ = [
    "BYTES",
    "FAMILIES",
    "MOST_BITS",
    "ROUNDINGS",
    "SAMPLING_DEFAULTS",
    "WIDEST",
    "CacheShape",
    "Checkpoint",
    "ChunkLength",
    "ConfigFields",
    "ExpertShape",
    "FamilyFacts",
    "IndexShape",
    "LatentShape",
    "LayerSizes",
    "ModelShape",
    "Positions",
    "RecurrenceShape",
    "Scheme",
    "StoredWeights",
    "WeightForm",
    "check_without_states",
    "config_files",
    "experts_of",
    "filled_in",
    "find_family",
    "index_of",
    "latent_of",
    "layer_sizes_of",
    "layers_that_turn",
    "least_bits",
    "modules_of",
    "plain_form",
    "positions_of",
    "read_checkpoint",
    "read_fields",
    "read_shape",
    "read_stored",
    "recurrence_of",
    "rounded_form",
    "sampling_defaults",
    "shape_of",
    "sizes_by_kind",
    "stream_sizes_of",
    "unusual",
    "widest",
    "windows_in_force",
    "windows_of",
]

"""Attention to sinks and a window only, so that a sequence may go on for ever.

StreamingLLM (Xiao et al., 2024).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from quire.core.errors import ConfigError
from quire.models.decoder import Decoder
from quire.models.latent_attention import LatentAttention
from quire.models.layers import Attention, Layer
from quire.models.rope import RopeConfig


class Streaming(NamedTuple):
    """Attention to the first ``sinks`` tokens and the last ``window`` ones, itself included.

    Distances are those in the cache: a sink is never farther away than ``sinks + window - 1``.
    """

    window: int
    sinks: int = 0

    @property
    def reach(self) -> int:
        """The number of positions that are told apart."""
        return self.window + self.sinks

    def check(
        self, ropes: tuple[RopeConfig, ...], windows: tuple[int | None, ...], longest: int
    ) -> None:
        """ConfigError if a model of texts up to ``longest`` tokens cannot attend so."""
        if not ropes:
            raise ConfigError("window: this model has no rotary positions")
        if any(windows):
            raise ConfigError("window: this model has sliding windows of its own")
        for rope in ropes:
            if rope.build().stable_length is not None:
                raise ConfigError(
                    f"window: the rotary frequencies of this model ({rope.kind}) change with the "
                    "length of the sequence, so it cannot run for ever"
                )
        if self.reach > longest:
            raise ConfigError(
                f"attention_sinks + window is {self.reach}; this model allows at most {longest}"
            )

    def applied(self, decoder: Decoder) -> Decoder:
        """The same weights, attending so."""
        layers = tuple(map(self._applied, decoder.layers))
        ropes = tuple(replace(rope, reach=self.reach) for rope in decoder.ropes)
        return replace(decoder, layers=layers, ropes=ropes)

    def _applied(self, layer: Layer) -> Layer:
        assert isinstance(layer.mixer, Attention | LatentAttention), "``check`` refuses others"
        spec = replace(layer.mixer.spec, window=self.window, sinks=self.sinks)
        return replace(layer, mixer=replace(layer.mixer, spec=spec))

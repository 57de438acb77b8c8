"""The text that a model reads at loading, so that its keys lose less in 4 bits."""

from __future__ import annotations

import torch
import xxhash

from quire.engine.config import EngineConfig
from quire.kernels.compiled import KERNELS, why_missing
from quire.kernels.rounded_cache import FOUR_BITS
from quire.models.base import Model
from quire.models.centring import centre_keys, centrings
from quire.models.decoder import DecoderModel
from quire.text.tokenizer import Tokenizer

_MOST = 512  # tokens
# A little of what models read: prose, code, a chat, other languages, JSON, a table.
_TEXT = '''\
The harbour was quiet that morning. Two boats had come in before sunrise, and the men who
unloaded them spoke little, because there was not much to say about weather that had been bad
for a week. "Will you go out again tomorrow?" Anna asked. Her brother shrugged and looked at the
clouds. In 1987 the town had 4,200 inhabitants; today it has fewer than half of them, and most
of those are older than sixty.

def median(numbers: list[float]) -> float:
    """The number in the middle; of an even count the mean of both."""
    ordered = sorted(numbers)
    half, odd = divmod(len(ordered), 2)
    if odd:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2

User: How do I boil an egg so that the yolk stays soft?
Assistant: Put the egg into boiling water and wait for six minutes. Then:
1. Take it out with a spoon.
2. Hold it under cold water, so that it stops cooking.
3. Peel it, and add a little salt.

Die Eisenbahn erreichte das Tal erst spät. Vorher brauchte ein Brief von der Stadt bis ins
letzte Dorf drei Tage, im Winter oft eine Woche. Heute fährt jede Stunde ein Zug, und niemand
denkt mehr darüber nach.

{"name": "kettle", "price": 24.5, "colours": ["red", "black"], "in_stock": true, "sizes":
{"small": 0.8, "large": 1.7}}

Les élèves de la classe ont planté douze arbres derrière l'école. La ecuación x^2 - 5x + 6 = 0
tiene dos soluciones: x = 2 y x = 3. Energy is conserved: what a falling stone loses in height,
it gains in speed, until friction turns all of it into heat.

SELECT city, COUNT(*) AS visits FROM journeys WHERE year >= 2020 GROUP BY city ORDER BY visits
DESC LIMIT 10;
| planet | moons | day (hours) |
|---|---|---|
| Mars | 2 | 24.6 |
| Jupiter | 95 | 9.9 |
'''


def with_centred_keys(
    config: EngineConfig, model: Model, tokenizer: Tokenizer, instruction_set: str
) -> Model:
    """The model, centred (``models/centring.py``) where the cache is of 4 bits and it can be."""
    if config.kv_cache_dtype != "int4" or why_missing(KERNELS) is not None:
        return model
    if not isinstance(model, DecoderModel):
        return model
    return centre_keys(model, tokenizer.encode(_TEXT)[:_MOST], instruction_set)


def describe_rounding(model: Model, kv_dtype: torch.dtype) -> str:
    """What decides the bits of keys beside their type: they were spread, about which centres."""
    found = centrings(model) if isinstance(model, DecoderModel) and kv_dtype == FOUR_BITS else []
    if not found:
        return "spread"
    digest = xxhash.xxh3_128()
    for centring in found:
        for part in centring[:6]:  # the rest follows from the model's config
            assert part is not None
            digest.update(part.numpy().tobytes())
    return f"spread, with fifth bits, about {digest.hexdigest()}"

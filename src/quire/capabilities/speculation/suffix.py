"""Drafts by suffix: what mostly followed the last tokens, in this text and in what was served."""

from __future__ import annotations

import hashlib
from array import array

from quire.capabilities.speculation._native import Archive, Rule, Volume
from quire.capabilities.speculation.config import SpeculativeConfig
from quire.capabilities.speculation.own_texts import OwnTexts
from quire.capabilities.speculation.proposal import Proposal
from quire.core.protocol import Request
from quire.core.scheduling.sequence import Sequence

_OWN_ORDERS, _SERVED_ORDERS = (1, 4), (2, 4)  # tokens by which a match is found
_OWN_WALKED, _SERVED_WALKED = 32, 16  # places that are looked at
_VOTERS, _LONGEST = 16, 64  # places that are heard, and tokens of a match that are compared
_SURE = 16  # tokens of a match in the own text beyond which what was served is not asked
_LEAD = 16  # tokens of a prompt's end by which the beginning of an output is found
_LAST = 64  # tokens that an output may have had since its sequence was asked for


class SuffixDrafter:
    """The longest match of the last tokens, in a request's own text or in outputs served before.

    The places that have it are asked how they go on, and the drafts end where it gets unlikely
    that all of them are right. Outputs are learned while they grow, in an amount of memory that is
    given: the eldest make room. Only requests with the same cache_salt and adapter find them.
    """

    name = "suffix"

    def __init__(self, config: SpeculativeConfig) -> None:
        factor = config.suffix_decoding_max_spec_factor
        least = config.suffix_decoding_min_token_prob
        self._own_rule = Rule(_OWN_WALKED, _VOTERS, _LONGEST, factor, least)
        self._served_rule = Rule(_SERVED_WALKED, _VOTERS, _LONGEST, factor, least)
        self._texts = OwnTexts(_OWN_ORDERS)
        self._volumes: dict[int, tuple[Volume, array[int]]] = {}
        num_bytes, most = config.cache_bytes, config.suffix_decoding_max_cached_requests
        self._archive = Archive(_SERVED_ORDERS, num_bytes, most) if num_bytes and most else None

    def propose(self, request: Request, sequence: Sequence, most: int) -> Proposal | None:
        text, token_ids = self._texts.of(request, sequence), sequence.token_ids
        guess = text.guess(token_ids, self._own_rule, most)
        if self._archive is not None:
            volume, known = self._volumes.get(sequence.seq_id, (None, None))
            if volume is None or known is not token_ids:
                volume = self._begin(self._archive, request, sequence, cut=known is not None)
            sure = guess is not None and guess[2] >= _SURE
            served = volume.guess(token_ids, self._served_rule, 0 if sure else most)
            if guess is None or (served is not None and served[3] > guess[3]):
                guess = served
        return None if guess is None else Proposal(*guess[:3])

    def _begin(
        self, archive: Archive, request: Request, sequence: Sequence, *, cut: bool
    ) -> Volume:
        """A volume for the sequence. cut: what is left of its text was learned before the cut."""
        token_ids = sequence.token_ids
        first = len(token_ids) if cut else sequence.num_prompt_tokens
        name = hashlib.blake2b(request.root_hash, digest_size=16).digest()
        volume = Volume(archive, name, max(0, first - _LEAD))
        self._volumes[sequence.seq_id] = volume, token_ids
        return volume

    def close(self, seq_id: int) -> None:
        self._texts.close(seq_id)
        if seq_id in self._volumes:
            volume, token_ids = self._volumes.pop(seq_id)
            volume.end(token_ids, _LAST)

    @property
    def num_bytes(self) -> int:
        archive = 0 if self._archive is None else self._archive.num_bytes
        return archive + self._texts.num_bytes

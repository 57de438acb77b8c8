"""From logits to tokens: one for each row, each row by its own request's parameters.

The order is vLLM's: log-probabilities are reported from the model's logits as they are, unless a
request asks for those of what is drawn from; then the requests' ``logits_processors`` edit them;
greedy rows take the likeliest token, of equals the one with the lowest id; other rows apply
temperature, min_p, top_k, top_p and draw. Each filter sees the distribution that the ones before it
left, renormalised, and leaves at least one token.

Logits are handled as gaps: how far, in nats at the row's temperature, a token lies below the
row's likeliest; a token's unnormalised probability is exp(-gap), at most 1, so nothing overflows.
Where it is below e^-80, less than one draw in 10^34, it is 0.

A draw inverts the cumulative distribution at one number that is a pure function of the request's
seed, the branch and the position, so a request gives the same tokens in any batch and any order.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.core.protocol.step import Sample, TokenLogprobs
from quire.execution.sampling.likeliest import Likeliest
from quire.execution.sampling.logits_processors import num_edits, process_logits, stacked
from quire.execution.sampling.rows import (
    FLOAT32,
    Filters,
    Mask,
    Readback,
    SampleRow,
    filter_table,
    guided,
    to_device,
    uniform,
)
from quire.kernels.ops import Few, Kernels
from quire.kernels.reference import ReferenceKernels

__all__ = ["Draws", "SampleRow", "beam_candidates", "draw", "token_logprobs"]

# Sorting the whole vocabulary costs many times what finding its likeliest few does, and they
# nearly always hold all that top_k and top_p keep. Rows for which they do not try again with more.
_SHORTLIST = 256
_SHORTLIST_GROWTH = 16
# Logits that are worked on at once in main memory: what is made of them stays in the caches, and is
# taken from memory that is at hand.
_AT_ONCE = 2**20
_FAINTEST = 80.0  # nats below the likeliest; a token further off has no part in a draw
_CDF_BLOCK = 256  # tokens; a draw looks for its block first, then inside
_TIES = 8  # tokens that may share the last place among the likeliest without leaving the lowest out
_CHEAP = 20e-6  # seconds of a row that masks may take without being told
_PLAIN = ReferenceKernels()
_BELOW_ONE = 1.0 - 2.0**-53
_LOGPROB_ROWS = 64  # rows whose log-probabilities are worked out at once: bounds the memory taken


class Draws:
    """Tokens that have been chosen on their device, one for each row.

    tokens: int64 [R], each in the vocabulary, even where the row has no distribution.
    seconds: by row, what it has taken here beside that: edits of its logits, unless they are masks
        that take next to nothing, and log-probabilities.
    """

    def __init__(
        self,
        tokens: Tensor,
        raw_peaks: Tensor,
        peaks: Tensor,
        rows: Sequence[SampleRow],
        logits: Tensor,
        seconds: dict[int, float],
        *,
        with_logprobs: bool,
    ) -> None:
        """Peaks [R, 1]: the largest of a row's logits, as the model gave and as edited."""
        self.tokens, self.seconds = tokens, seconds
        # Whether rows are sound comes with them.
        self._drawn = Readback(tokens, raw_peaks, peaks)
        self._wanted, counts = list[int](), list[int]()
        for i, row in enumerate(rows if with_logprobs else ()):
            num_top = row.params.sample_logprobs
            if num_top is not None:
                self._wanted.append(i)
                counts.append(num_top)
        self._logprobs = None
        if counts:
            began = time.thread_time()
            chosen, reported = _take(tokens, self._wanted), _take(logits, self._wanted)
            asking = [rows[i] for i in self._wanted]
            if late := [i for i, row in enumerate(asking) if row.params.logprobs_of_draw]:
                reported = reported.clone()
                for start in range(0, len(late), _LOGPROB_ROWS):
                    part = late[start : start + _LOGPROB_ROWS]
                    places = _indices(part, reported)
                    left = _left(reported[places], [asking[i] for i in part])
                    reported.index_copy_(0, places, left)
            self._logprobs = _Logprobs(reported, chosen, counts)
            _divide(time.thread_time() - began, dict.fromkeys(self._wanted, 1), seconds)

    def read(self) -> list[Sample | None]:
        """Wait for the device. None: the row has no distribution to sample."""
        tokens, raw_peaks, peaks = self._drawn.tensors()
        samples: list[Sample | None] = []
        both = tokens.tolist(), raw_peaks.tolist(), peaks.tolist()
        for token, (raw_peak,), (peak,) in zip(*both, strict=True):
            is_sound = math.isfinite(raw_peak) and math.isfinite(peak)
            samples.append(Sample(token) if is_sound else None)
        if self._logprobs is not None:
            began = time.thread_time()
            for i, logprobs in zip(self._wanted, self._logprobs.read(), strict=True):
                sample = samples[i]
                samples[i] = None if sample is None else sample._replace(logprobs=logprobs)
            _divide(time.thread_time() - began, dict.fromkeys(self._wanted, 1), self.seconds)
        return samples


def _divide(taken: float, shares: Mapping[int, int], seconds: dict[int, float]) -> None:
    """Add to each row's seconds its share of ``taken``, which all of these took together."""
    each = taken / sum(shares.values())
    for row, share in shares.items():
        seconds[row] = seconds.get(row, 0.0) + each * share


@torch.no_grad()
def draw(
    logits: Tensor,
    rows: Sequence[SampleRow],
    kernels: Kernels = _PLAIN,
    with_logprobs: bool = True,
) -> Draws:
    """Choose a token for each row of ``logits``, float32 [R, V], which stay as they are.

    Waits for the device only where a row has top_k or top_p and the kernels do not draw.
    with_logprobs: work out log-probabilities where rows ask for them.

    A row has no distribution to sample if the model gave NaN, +inf or nothing but -inf, or no
    allowed token is in the vocabulary with a finite logit. The other rows are unaffected.
    """
    most = len(rows) if logits.device.type != "cpu" else max(1, _AT_ONCE // logits.shape[1])
    seconds: dict[int, float] = {}
    if len(rows) <= most:
        tokens, raw_peaks, peaks = _choose(logits, rows, kernels, seconds)
    else:
        parts = [
            _choose(
                logits[start : start + most], rows[start : start + most], kernels, seconds, start
            )
            for start in range(0, len(rows), most)
        ]
        tokens, raw_peaks, peaks = map(torch.cat, zip(*parts, strict=True))
    return Draws(tokens, raw_peaks, peaks, rows, logits, seconds, with_logprobs=with_logprobs)


def _choose(
    logits: Tensor,
    rows: Sequence[SampleRow],
    kernels: Kernels,
    seconds: dict[int, float],
    first: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """A token for each row [R], and the largest of its logits, as given and as edited [R, 1].

    seconds: what edits have taken is added here, by row; ``first`` is the number of the first.

    Where a mask leaves few tokens, as it mostly does, only those are looked at. Whether it does so
    is a matter of that row alone.
    """
    masks = {i: mask for i, mask in guided(rows).items() if _is_only_guided(rows[i])}
    few = _choose_of_few(logits, rows, masks, kernels) if masks else None
    if few is None:
        return _choose_of_all(logits, rows, kernels, seconds, range(first, first + len(rows)))
    raw_peaks = logits.amax(-1, keepdim=True)
    tokens, peaks = torch.empty(len(rows), dtype=torch.int64), torch.empty(len(rows), 1)
    numbers = torch.tensor([*masks])
    tokens[numbers], peaks[numbers, 0] = few
    chosen = few.chosen.tolist()
    left = {i for i, token in zip(masks, chosen, strict=True) if token < 0}
    if others := [i for i in range(len(rows)) if i in left or i not in masks]:
        numbers, those = torch.tensor(others), [rows[i] for i in others]
        places = [first + i for i in others]
        found = _choose_of_all(logits[numbers], those, kernels, seconds, places)
        tokens[numbers], _, peaks[numbers] = found
    return tokens, raw_peaks, peaks


def _choose_of_few(
    logits: Tensor, rows: Sequence[SampleRow], masks: Mapping[int, Mask], kernels: Kernels
) -> Few | None:
    """Choose for rows that only a mask narrows, where it leaves few tokens."""
    heat, aims = list[float](), list[float]()
    for i in masks:
        request, params, branch, position, _ = rows[i]
        temperature = params.temperature
        heat.append(min(temperature, FLOAT32.max))
        aims.append(uniform(request.seed, branch, position) if temperature else 0.0)
    return kernels.choose_of_few(logits, stacked(masks), [*masks], heat, aims)


def _is_only_guided(row: SampleRow) -> bool:
    """Whether nothing but a mask narrows its choice."""
    params = row.params
    filtered = params.temperature and (params.top_k > 0 or params.top_p < 1 or params.min_p > 0)
    return not params.edits_some_logits and not filtered


def _choose_of_all(
    logits: Tensor,
    rows: Sequence[SampleRow],
    kernels: Kernels,
    seconds: dict[int, float],
    numbers: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """See ``_choose``; numbers: of the rows."""
    edits, told = list[int](), False
    for i, row in enumerate(rows):
        params = row.params
        if params.edits_logits:
            edits.append(i)
            told = told or params.edits_some_logits
    edited = logits
    if edits:
        began = time.thread_time()
        edited = process_logits(logits, rows, kernels.allow)
        taken = time.thread_time() - began
        if told or taken > _CHEAP * len(edits):
            _divide(taken, {numbers[i]: num_edits(rows[i]) for i in edits}, seconds)
    tokens, peaks, slow = _pick(edited, rows, kernels)
    if slow:
        each = dict.fromkeys((numbers[i] for i in slow.rows), 1)
        _divide(slow.seconds, each, seconds)
    raw_peaks = peaks if edited is logits else logits.amax(-1, keepdim=True)
    return tokens, raw_peaks, peaks


class _Slow(NamedTuple):
    """Rows that have taken long, and how long."""

    rows: list[int]
    seconds: float


def _pick(
    logits: Tensor, rows: Sequence[SampleRow], kernels: Kernels
) -> tuple[Tensor, Tensor, _Slow | None]:
    """The place of one of each row's logits, and the largest of them [R, 1]."""
    if kernels.draws:
        filters = None
        if any(row.params.temperature for row in rows):
            filters = filter_table(rows, logits.shape[1], logits.device)
        tokens, peaks = kernels.draw(logits, filters)
        return tokens, peaks[:, None], None
    tokens = kernels.argmax(logits)
    peaks = logits.gather(1, tokens[:, None])  # argmax takes NaN for the largest
    drawn = [i for i, row in enumerate(rows) if row.params.temperature]
    if not drawn:
        return tokens, peaks, None
    if len(drawn) == len(rows):
        tokens, slow, taken = _draw(logits, peaks, rows)
    else:
        indices = _indices(drawn, logits)
        found, slow, taken = _draw(logits[indices], peaks[indices], [rows[i] for i in drawn])
        tokens.index_copy_(0, indices, found)
    return tokens, peaks, _Slow([drawn[i] for i in slow], taken) if slow else None


@torch.no_grad()
def beam_candidates(
    logits: Tensor, rows: Sequence[SampleRow], counts: Sequence[int]
) -> list[Likeliest | None]:
    """The likeliest next tokens of beams and their log-probabilities, likeliest first.

    ``logits`` is float32 [R, V]; row i gets ``counts[i]`` tokens. As in transformers, penalties,
    biases and bans act on the log-probabilities, which are not normalised again. Tokens that cannot
    be are left out; None stands for a row where none can, or of NaN. Of equals the lower id is
    first, whatever the other rows ask for.
    """
    edited = process_logits(logits.log_softmax(-1), rows)
    values, ids = edited.topk(min(max(counts) + _TIES, logits.shape[1]), dim=-1)
    ids, order = ids.sort(dim=-1)
    values, order = values.gather(1, order).sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(1, order)
    if _tied_at_the_end(values, counts, logits.shape[1]):
        values, ids = edited.sort(dim=-1, descending=True, stable=True)
    tables = _rows(torch.cat([ids.double(), values.double()], dim=1))
    possible = (values > -torch.inf).sum(-1).tolist()
    found = [
        Likeliest(table, min(count, most))
        for table, count, most in zip(tables, counts, possible, strict=True)
    ]
    return [likeliest or None for likeliest in found]


@torch.no_grad()
def token_logprobs(
    logits: Tensor, token_ids: Sequence[int], num_top: Sequence[int]
) -> list[TokenLogprobs]:
    """Log-probabilities under ``logits``, float32 [R, V], one token id and one count a row.

    A rank is 1 + the number of strictly likelier tokens. In ``top``, equals are in order of id. A
    token that cannot occur has -inf; rows with NaN give NaN.
    """
    if not token_ids:
        return []
    return _Logprobs(logits, to_device(torch.tensor(token_ids), logits.device), num_top).read()


class _Logprobs:
    """What ``token_logprobs`` gives, on its way to main memory."""

    def __init__(self, logits: Tensor, token_ids: Tensor, num_top: Sequence[int]) -> None:
        self._num_top = num_top
        self._logits, self._token_ids = logits if logits.device.type == "cpu" else None, token_ids
        self._parts = []
        most = _LOGPROB_ROWS
        if logits.device.type == "cpu":
            most = max(1, min(most, _AT_ONCE // logits.shape[1]))
        for start in range(0, len(token_ids), most):
            part = slice(start, start + most)
            width = min(max(num_top[part]) + _TIES, logits.shape[1])
            table = _logprob_table(logits[part], token_ids[part, None], width)
            self._parts.append((part, Readback(table)))

    def read(self) -> list[TokenLogprobs]:
        counts = iter(self._num_top)
        return [
            TokenLogprobs(row[0], int(row[1]), Likeliest(row[2:], next(counts)))
            for part, table in self._parts
            for row in _rows(self._exact(part, table.tensors()[0]))
        ]

    def _exact(self, part: slice, table: Tensor) -> Tensor:
        """A part's table, of equals the lower ids; where logits are at hand, of any number."""
        logits, width = self._logits, (table.shape[1] - 2) // 2
        if logits is None or not _tied_at_the_end(
            table[:, 2 + width :], self._num_top[part], logits.shape[1]
        ):
            return table
        whole = _logprob_table(logits[part], self._token_ids[part, None], logits.shape[1])
        values = 2 + logits.shape[1]
        return torch.cat([whole[:, : 2 + width], whole[:, values : values + width]], dim=1)


def _rows(table: Tensor) -> Iterator[array[float]]:
    """Each row of a float64 table, as numbers of its own."""
    for row in table.cpu().numpy():
        yield array("d", row.tobytes())


def _logprob_table(logits: Tensor, chosen_ids: Tensor, width: int) -> Tensor:
    """For each row, its token's log-probability and rank, and its ``width`` likeliest.

    One table, so that one transfer brings it all; float64 holds ids and ranks exactly.
    """
    gaps = logits.amax(-1, keepdim=True) - logits
    log_mass = _block_weights(gaps.clone())[1].sum(-1, keepdim=True).log()
    top_ids, top_gaps = _likeliest(gaps, width)
    chosen = gaps.gather(1, chosen_ids)
    ranks = (gaps < chosen).sum(-1, keepdim=True) + 1
    return torch.cat([-chosen - log_mass, ranks, top_ids, -top_gaps - log_mass], dim=1)


def _draw(
    logits: Tensor, peaks: Tensor, rows: Sequence[SampleRow]
) -> tuple[Tensor, Sequence[int], float]:
    """Draw from each row of ``logits`` [N, V] whose largest are ``peaks`` [N, 1]: ids [N].

    What comes out for a row whose peak is not finite is in the vocabulary, and means nothing. Last,
    the rows whose filters keep much, and the seconds that this has taken.
    """
    vocab_size = logits.shape[1]
    filters = Filters.of(rows, vocab_size, logits.device)
    gaps = (peaks - logits).div_(filters.temperature.float())
    whole, truncated, has_min_p, all_top_k = list[int](), list[int](), False, True
    for i, row in enumerate(rows):
        params = row.params
        has_min_p = has_min_p or params.min_p > 0
        has_top_k = 0 < params.top_k < vocab_size
        if has_top_k or params.top_p < 1:
            truncated.append(i)
            all_top_k = all_top_k and has_top_k
        else:
            whole.append(i)
    if has_min_p:
        gaps.masked_fill_(gaps > filters.max_gap.float(), torch.inf)
    slow, taken = list[int](), 0.0
    if not truncated:
        tokens = _draw_whole(gaps, filters.uniform)
    elif not whole:
        tokens, slow, taken = _draw_truncated(gaps, filters, all_top_k)
    else:
        tokens = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
        indices = _indices(whole, gaps)
        tokens.index_copy_(0, indices, _draw_whole(gaps[indices], filters.uniform[indices]))
        indices = _indices(truncated, gaps)
        found, slow, taken = _draw_truncated(gaps[indices], filters.take(indices), all_top_k)
        tokens.index_copy_(0, indices, found)
    return tokens.clamp_(max=vocab_size - 1), [truncated[i] for i in slow], taken


def _draw_whole(gaps: Tensor, uniform: Tensor) -> Tensor:
    """Draw from all tokens: gaps [N, V], uniform [N, 1] -> ids [N].

    A cumulative sum over blocks and one inside the chosen block cost a small part of one over
    the vocabulary.
    """
    weights, blocks = _block_weights(gaps)
    cdf = blocks.cumsum(-1)
    aim = uniform * cdf[:, -1:]
    block = _place(cdf, aim)
    above = cdf.gather(1, block)
    below = torch.where(block > 0, cdf.gather(1, (block - 1).clamp(min=0)), 0.0)
    # Where in its block each number fell is a uniform number again.
    within = ((aim - below) / (above - below)).clamp(max=_BELOW_ONE)
    inside = weights[torch.arange(len(gaps), device=gaps.device), block[:, 0]]
    cdf = inside.cumsum(-1, dtype=torch.float64)
    return (block * _CDF_BLOCK + _place(cdf, within * cdf[:, -1:]))[:, 0]


def _weights(gaps: Tensor) -> Tensor:
    """exp(-gap) of each token, and 0 beyond ``_FAINTEST``; in the place of the gaps.

    For exp takes up to thirty times as long where what it gives is zero or nearly so, which most
    are at a low temperature, or where few tokens are allowed.
    """
    weights = gaps.clamp_(max=_FAINTEST).neg_().exp_()
    return F.threshold(weights, 1.0001 * math.exp(-_FAINTEST), 0.0, inplace=True)


def _block_weights(gaps: Tensor) -> tuple[Tensor, Tensor]:
    """Each token's exp(-gap), float32 [N, B, block], and the sums of blocks, float64 [N, B].

    The gaps are overwritten.

    Sums of short blocks in float32 lose no more than exp did, and unlike one long sum do not
    depend on how the work is spread over threads, hence on the rest of the batch.
    """
    weights = _weights(gaps)
    if missing := -gaps.shape[1] % _CDF_BLOCK:
        weights = F.pad(weights, (0, missing))
    weights = weights.view(len(gaps), -1, _CDF_BLOCK)
    return weights, weights.sum(-1).double()


def _left(logits: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    """The logits [N, V] of what rows are drawn from: -inf where a token cannot be.

    Of a greedy row that is one token.
    """
    vocab_size, device = logits.shape[1], logits.device
    edited, filters = process_logits(logits, rows), Filters.of(rows, vocab_size, device)
    gaps = (edited.amax(-1, keepdim=True) - edited).div_(filters.temperature.float())
    gaps.masked_fill_(gaps > filters.max_gap.float(), torch.inf)
    mass = _block_weights(gaps.clone())[1].sum(-1, keepdim=True)
    ids, gaps = _likeliest(gaps, vocab_size)
    places = torch.arange(vocab_size, device=device)
    cdf = _weights(gaps.clone()).double().masked_fill_(places >= filters.top_k, 0.0).cumsum(-1)
    target = filters.top_p * torch.where(filters.top_k < vocab_size, cdf[:, -1:], mass)
    last = torch.searchsorted(cdf, target).masked_fill_(filters.top_p >= 1, vocab_size)
    gaps.masked_fill_((places >= filters.top_k) | (places > last), torch.inf)
    return torch.empty_like(gaps).scatter_(1, ids, -gaps)


def _draw_truncated(
    gaps: Tensor, filters: Filters, all_top_k: bool
) -> tuple[Tensor, list[int], float]:
    """Draw from the tokens that top_k and then top_p keep: gaps [N, V] -> ids [N].

    all_top_k: each row has one. Last, the rows of which the shortlist did not do, and the seconds
    that those have taken.
    """
    if all_top_k:
        mass = filters.top_p.new_zeros(len(gaps), 1)  # nobody asks
    else:
        mass = _block_weights(gaps.clone())[1].sum(-1, keepdim=True)
    vocab_size = gaps.shape[1]
    width = min(_SHORTLIST, vocab_size)
    tokens, settled = _draw_shortlist(gaps, mass, filters, width)
    pending: Tensor | None = None  # rows of those that the shortlist holds, of all
    slow, began = list[int](), time.thread_time()
    while width < vocab_size and not settled.all():
        left = (~settled).nonzero()[:, 0]
        gaps, mass, filters = gaps[left], mass[left], filters.take(left)
        pending = left if pending is None else pending[left]
        slow = slow or pending.tolist()
        # In main memory to sort all takes no longer than to find some thousands.
        growth = vocab_size if gaps.device.type == "cpu" else _SHORTLIST_GROWTH
        width = min(width * growth, vocab_size)
        drawn, settled = _draw_shortlist(gaps, mass, filters, width)
        tokens[pending] = drawn
    return tokens, slow, time.thread_time() - began


def _draw_shortlist(
    gaps: Tensor, mass: Tensor, filters: Filters, width: int
) -> tuple[Tensor, Tensor]:
    """Draw from what top_k and top_p keep of the ``width`` likeliest tokens.

    mass [N, 1] is the weight of all tokens, used for rows without top_k.
    Returns ids [N] and, bool [N], whether the whole vocabulary would have given the same.
    """
    ids, short_gaps = _likeliest(gaps, width)
    weights = _weights(short_gaps.clone()).double()
    ends = weights[:, -1:] == 0  # no token beyond the shortlist can occur
    weights.masked_fill_(torch.arange(width, device=gaps.device) >= filters.top_k, 0.0)
    cdf = weights.cumsum(-1)
    has_top_k = filters.top_k < gaps.shape[1]
    target = filters.top_p * torch.where(has_top_k, cdf[:, -1:], mass)
    enough = torch.where(has_top_k, filters.top_k <= width, cdf[:, -1:] >= target)
    # The first token at which the target is reached is the last that top_p keeps.
    last = torch.searchsorted(cdf, target).clamp(max=width - 1)
    # If it equals the shortlist's last, the ties that lower ids win may be beyond.
    untied = short_gaps.gather(1, last) < short_gaps[:, -1:]
    place = _place(cdf, filters.uniform * cdf.gather(1, last))
    return ids.gather(1, place)[:, 0], ((enough & untied) | ends)[:, 0]


def _place(cdf: Tensor, aim: Tensor) -> Tensor:
    """The place [N, 1] in each row of unnormalised ``cdf`` [N, M] where ``aim`` [N, 1] falls."""
    # The first sum above the aim: a token without weight raises no sum, so it is never taken.
    return torch.searchsorted(cdf, aim, right=True).clamp(max=cdf.shape[1] - 1)


def _likeliest(gaps: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The ``width`` likeliest tokens of each row, likeliest first: ids and gaps [N, width].

    Of equals the lower id is first, which is left to chance only for which of those that equal the
    last one made the list. Equals are common: logits come from bfloat16.
    """
    if width == gaps.shape[1]:
        short_gaps, ids = gaps, torch.arange(width, device=gaps.device)
    else:
        short_gaps, ids = gaps.topk(width, largest=False, sorted=False)
    # Gap and id in one integer: a float32 that is not negative orders as its bits do.
    keys = _sorted((short_gaps.view(torch.int32).long() << 32) | ids)
    return keys & 0xFFFFFFFF, (keys >> 32).int().view(torch.float32)


def _sorted(keys: Tensor) -> Tensor:
    """Each row of integers in order; in main memory in their place, in a tenth of torch's time."""
    if keys.device.type != "cpu":
        return keys.sort(dim=-1).values
    keys.numpy().sort(axis=-1)
    return keys


def _tied_at_the_end(short: Tensor, counts: Sequence[int], vocab_size: int) -> bool:
    """Whether a row's last that counts equals the last of its list [N, width], so that others may.

    Which of them are in the list then depends on its width, hence on the other rows. Waits.
    """
    if short.shape[1] == vocab_size:
        return False
    last = torch.tensor(counts, device=short.device)[:, None] - 1
    tied = short.gather(1, last.clamp(min=0)) == short[:, -1:]
    return bool((tied & (last >= 0)).any())


def _take(rows: Tensor, indices: list[int]) -> Tensor:
    """The chosen rows, which increase; without a copy where they are all of them."""
    return rows if len(indices) == len(rows) else rows[_indices(indices, rows)]


def _indices(indices: list[int], like: Tensor) -> Tensor:
    return to_device(torch.tensor(indices), like.device)

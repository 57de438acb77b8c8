"""Train a small Llama on the corpus, within a budget of wall time or of tokens."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from .chats import Subject, conversations
from .corpus import Document
from .tokenizer import ASSISTANT, END, END_OF_TEXT, SYSTEM, USER, token_id

IGNORED = -100
Row = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Settings:
    """What shapes a run; the defaults are those of the shipped model."""

    minutes: float = 30.0
    tokens: int | None = None
    seed: int = 0
    tokens_per_step: int = 4096
    # Length of the sequences, and the progress up to which it is used: short ones
    # train fastest, and the last phases make long contexts work.
    phases: tuple[tuple[int, float], ...] = ((256, 0.6), (512, 0.85), (1024, 0.93), (2048, 1.0))
    chat_share: float = 0.45
    learning_rate: float = 6e-3
    embedding_rate: float = 4e-3
    weight_decay: float = 0.1
    warm_up: float = 0.02
    dropout: float = 0.05
    evaluations: int = 15
    autocast: bool = True

    def length(self, progress: float) -> int:
        """Return the sequence length of the phase that *progress* (0 to 1) falls into."""
        return next(n for n, end in self.phases if progress < end or end == 1.0)

    def rate(self, progress: float) -> float:
        """Scale of the learning rate: a short warm-up, then a straight line to zero."""
        return min(1.0, (progress + 1e-3) / self.warm_up, (1.0 - progress) / (1 - self.warm_up))


@dataclass
class Result:
    """The best weights met, their score, and how much was read to reach the end."""

    bits_per_byte: float = math.inf
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    tokens: int = 0
    seconds: float = 0.0


def model_config(tokenizer: Tokenizer) -> LlamaConfig:
    """Return the shape: 3.95 million parameters, just under 8 MB in bfloat16."""
    end_of_text = token_id(tokenizer, END_OF_TEXT)
    return LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=end_of_text,
        eos_token_id=[end_of_text, token_id(tokenizer, END)],
        pad_token_id=end_of_text,
    )


class Stream:
    """Endless training rows from a function that yields one round of documents.

    A row starts where a document starts as often as *aligned* says, because that is what
    a server sees: prompts that begin at position zero with nothing before them.
    """

    def __init__(
        self, round_of: Callable[[], Iterator[Row]], aligned: float, rng: random.Random
    ) -> None:
        self._round_of = round_of
        self._aligned = aligned
        self._rng = rng
        self._inputs = np.zeros(0, np.int64)
        self._targets = np.zeros(0, np.int64)
        self._starts = np.zeros(1, np.int64)
        self._position = 0

    def _refill(self, length: int) -> None:
        pieces = list(self._round_of())
        self._inputs = np.concatenate([ids for ids, _ in pieces])
        self._targets = np.concatenate([targets for _, targets in pieces])
        self._starts = np.cumsum([0, *(len(ids) for ids, _ in pieces)])[:-1]
        self._position = self._rng.randrange(length)

    def row(self, length: int) -> Row:
        """Return the next *length* input tokens and the targets that follow them."""
        if self._position + 2 * length + 1 >= len(self._inputs):
            self._refill(length)
        start = self._position
        self._position += length
        if self._rng.random() < self._aligned:
            earlier = self._starts[np.searchsorted(self._starts, start, side="right") - 1]
            start = int(earlier) if start - earlier < length else start
        return (
            self._inputs[start : start + length],
            self._targets[start + 1 : start + length + 1],
        )


def document_rounds(
    documents: list[Document], tokenizer: Tokenizer, rng: random.Random
) -> Callable[[], Iterator[Row]]:
    """Return rounds of the plain documents: modules shuffled, their documents together."""
    end = token_id(tokenizer, END_OF_TEXT)
    modules: dict[str, list[np.ndarray]] = {}
    encoded = tokenizer.encode_batch([d.plain() for d in documents])
    for document, encoding in zip(documents, encoded, strict=True):
        # A whole reference section is long enough to stand alone.
        key = document.name if document.kind == "topic" else document.module
        modules.setdefault(key, []).append(np.array([*encoding.ids, end], np.int64))

    def rounds() -> Iterator[Row]:
        keys = list(modules)
        rng.shuffle(keys)
        for key in keys:
            for ids in modules[key]:
                yield ids, ids

    return rounds


def chat_rounds(
    subjects: list[Subject], tokenizer: Tokenizer, rng: random.Random
) -> Callable[[], Iterator[Row]]:
    """Return rounds of fresh chats, of which only the answers are to be learned."""
    ids = {t: token_id(tokenizer, t) for t in (USER, ASSISTANT, SYSTEM, END, END_OF_TEXT)}

    def pieces(system: str | None, turns: list[tuple[str, str]]) -> list[tuple[str, str]]:
        flat = [(SYSTEM, system)] if system else []
        for question, answer in turns:
            flat += [(USER, question), (ASSISTANT, answer)]
        return flat

    def rounds() -> Iterator[Row]:
        chats = [pieces(*chat) for chat in conversations(subjects, rng)]
        texts = [text.strip() for chat in chats for _, text in chat]
        encoded = iter(tokenizer.encode_batch(texts))
        for chat in chats:
            inputs: list[int] = []
            targets: list[int] = []
            for role, _ in chat:
                body = [*next(encoded).ids, ids[END]]
                inputs += [ids[role], *body]
                targets += [IGNORED, *(body if role == ASSISTANT else [IGNORED] * len(body))]
            inputs.append(ids[END_OF_TEXT])
            targets.append(ids[END_OF_TEXT])
            yield np.array(inputs, np.int64), np.array(targets, np.int64)

    return rounds


def add_dropout(model: LlamaForCausalLM, rate: float) -> None:
    """Drop parts of what each block adds; Llama has no dropout, and the corpus is small."""

    def drop(module: torch.nn.Module, _: object, output: Any) -> Any:
        states = output[0] if isinstance(output, tuple) else output
        if not module.training:
            return output
        # One mask for all positions of a row: random numbers are dear on a CPU.
        mask = functional.dropout(states.new_ones(len(states), 1, states.shape[-1]), rate)
        return (states * mask, *output[1:]) if isinstance(output, tuple) else states * mask

    if rate > 0:
        model.model.embed_tokens.register_forward_hook(drop)
        for layer in model.model.layers:
            layer.self_attn.register_forward_hook(drop)
            layer.mlp.register_forward_hook(drop)


def make_optimizers(model: LlamaForCausalLM, settings: Settings) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of the blocks, and AdamW for everything else.

    Muon reaches a given loss in clearly fewer steps, and steps are what a CPU lacks.
    """
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    norms = [p for p in model.parameters() if p.ndim == 1]
    embedding = [model.model.embed_tokens.weight]
    muon = torch.optim.Muon(
        matrices,
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )
    groups = [
        {"params": embedding, "weight_decay": settings.weight_decay},
        {"params": norms, "weight_decay": 0.0},
    ]
    adam = torch.optim.AdamW(groups, lr=settings.embedding_rate, betas=(0.9, 0.98), eps=1e-10)
    for optimizer in (muon, adam):
        for group in optimizer.param_groups:
            group["initial"] = group["lr"]
    return [muon, adam]


class OutputLoss(torch.autograd.Function):
    """Cross-entropy of the output layer, a few hundred positions at a time.

    The logits of a whole batch are 130 MB; in pieces that stay in the cache, with the
    gradient taken on the spot, a training step is a third faster.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        shares: torch.Tensor,
        temperature: float = 1.0,
    ) -> torch.Tensor:
        """Each position's *targets*, tokens [T, K], have *shares* of its probability."""
        matrix = weight.to(hidden.dtype)
        hidden_gradient = torch.empty_like(hidden)
        weight_gradient = torch.zeros_like(weight)
        total = 0.0
        for start in range(0, len(hidden), 512):
            part = slice(start, start + 512)
            piece, wanted, share = hidden[part], targets[part], shares[part]
            scores = (piece @ matrix.T).float().div_(temperature)
            log_sum = scores.logsumexp(-1, keepdim=True)
            total += ((log_sum - scores.gather(1, wanted)) * share).sum().item()
            gradient = scores.sub_(log_sum).exp_()
            gradient.scatter_add_(1, wanted, -share)
            scaled = gradient.div_(len(hidden) * temperature).to(hidden.dtype)
            hidden_gradient[part] = scaled @ matrix
            weight_gradient += scaled.T @ piece
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        return torch.tensor(total / len(hidden))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        return hidden_gradient * gradients[0], weight_gradient * gradients[0], None, None, None


def _loss(model: LlamaForCausalLM, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean loss; only positions with a target pay for the output layer."""
    hidden = model.model(input_ids=inputs, use_cache=False).last_hidden_state
    wanted = targets != IGNORED
    kind = torch.bfloat16 if torch.is_autocast_enabled("cpu") else torch.float32
    with torch.autocast("cpu", enabled=False):
        certain = torch.ones(int(wanted.sum()), 1)
        loss: torch.Tensor = OutputLoss.apply(
            hidden[wanted].to(kind), model.lm_head.weight, targets[wanted, None], certain
        )
    return loss


@torch.no_grad()
def bits_per_byte(
    model: LlamaForCausalLM, tokenizer: Tokenizer, texts: list[str], window: int = 1024
) -> float:
    """Return the total cost of *texts*, each on its own and with its end, per UTF-8 byte."""
    model.eval()
    end = token_id(tokenizer, END_OF_TEXT)
    rows = []
    for encoding in tokenizer.encode_batch(texts):
        ids = [end, *encoding.ids, end]
        rows += [ids[i : i + window + 1] for i in range(0, len(ids) - 1, window)]
    rows.sort(key=len)
    nats = 0.0
    for first in range(0, len(rows), 16):
        batch = rows[first : first + 16]
        width = max(map(len, batch))
        padded = torch.full((len(batch), width), IGNORED)
        for row, ids in zip(padded, batch, strict=True):
            row[: len(ids)] = torch.tensor(ids)
        targets = padded[:, 1:]
        logits = model(input_ids=padded[:, :-1].clamp(min=0), use_cache=False).logits.float()
        nats += functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
        ).item()
    return nats / math.log(2) / sum(len(text.encode()) for text in texts)


def _batch(
    streams: list[tuple[float, Stream]], length: int, count: int, rng: random.Random
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw rows from the streams, each as often as its share says."""
    shares = [share for share, _ in streams]
    rows = [rng.choices(streams, shares)[0][1].row(length) for _ in range(count)]
    inputs, targets = (np.stack(part) for part in zip(*rows, strict=True))
    return torch.from_numpy(inputs), torch.from_numpy(targets)


def _step(
    model: LlamaForCausalLM,
    optimizers: list[torch.optim.Optimizer],
    batch: tuple[torch.Tensor, torch.Tensor],
    rate: float,
    autocast: bool,
) -> float:
    """Take one training step at the given share of the full learning rate."""
    model.train()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = _loss(model, *batch)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["initial"] * rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item()


def train(
    model: LlamaForCausalLM,
    streams: list[tuple[float, Stream]],
    evaluate: Callable[[], float],
    settings: Settings,
    report: Callable[[str], None] = print,
) -> Result:
    """Train *model* and return its best weights by *evaluate*, lower being better."""
    rng = random.Random(settings.seed)
    optimizers = make_optimizers(model, settings)
    result = Result()
    began = time.monotonic()
    progress, checked = 0.0, 0.0
    recent: list[float] = []
    while progress < 1.0:
        length = settings.length(progress)
        batch = _batch(streams, length, max(1, settings.tokens_per_step // length), rng)
        rate = settings.rate(progress)
        recent.append(_step(model, optimizers, batch, rate, settings.autocast))
        result.tokens += batch[0].numel()
        result.seconds = time.monotonic() - began
        if settings.tokens is not None:
            progress = result.tokens / settings.tokens
        else:
            progress = result.seconds / (60 * settings.minutes)
        if progress - checked < 1 / settings.evaluations and progress < 1.0:
            continue
        checked = progress
        score = evaluate()
        report(
            f"{progress:4.0%} {result.tokens:>10,} tokens {result.seconds:6.0f} s  length "
            f"{length:4}  train loss {sum(recent) / len(recent):.3f}  held-out {score:.4f}"
        )
        recent.clear()
        if score < result.bits_per_byte:
            result.bits_per_byte = score
            result.weights = {k: v.clone() for k, v in model.state_dict().items()}
    return result

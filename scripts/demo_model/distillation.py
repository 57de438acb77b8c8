"""A draft model: a far smaller Llama that is taught to say what the demonstration model says."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from quire import LLM, SamplingParams

from .chats import Subject, conversations
from .corpus import Document
from .tokenizer import ASSISTANT, END, END_OF_TEXT, SYSTEM, USER, token_id
from .training import OutputLoss, Settings, make_optimizers, model_config

TEMPERATURE = 0.7  # of the demonstration model's own generation_config.json
KEPT = 32  # likeliest tokens that a lesson has of each position
# Length of the rows, and the share of the tokens that comes in such.
LENGTHS = ((512, 0.85), (2048, 0.15))


@dataclass(frozen=True)
class Lessons:
    """Texts, and what the teacher thinks of each position, in rows of one length."""

    token_ids: torch.Tensor  # [rows, length]
    top_ids: torch.Tensor  # [rows, length, KEPT]
    shares: torch.Tensor  # the same: of the probability


def draft_config(tokenizer: Tokenizer) -> LlamaConfig:
    """Return the shape: just under a million bytes in bfloat16, most of them the vocabulary."""
    config = model_config(tokenizer)
    config.update(
        {
            "hidden_size": 96,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 32,
        }
    )
    return config


@torch.no_grad()
def make_student(teacher: LlamaForCausalLM, config: LlamaConfig) -> LlamaForCausalLM:
    """A small model whose tokens lie to each other as *teacher*'s do, as far as there is room."""
    student = LlamaForCausalLM(config)
    tokens = teacher.model.embed_tokens.weight.float()
    directions = torch.linalg.eigh(tokens.T @ tokens).eigenvectors[:, -config.hidden_size :]
    student.model.embed_tokens.weight.copy_(tokens @ directions)
    return student


def spoken_texts(
    folder: Path,
    documents: list[Document],
    subjects: list[Subject],
    tokenizer: Tokenizer,
    count: int,
    rng: random.Random,
) -> list[list[int]]:
    """Let the model in *folder* answer questions and go on with documents: what it will draft."""
    chats = _questions(subjects, tokenizer, rng)
    prompts = [next(chats) for _ in range(count // 2)]
    texts = [
        document.plain() for document in rng.sample(documents, min(count // 2, len(documents)))
    ]
    for encoding in tokenizer.encode_batch(texts):
        prompts.append(encoding.ids[: rng.randint(4, 64)] or [token_id(tokenizer, END_OF_TEXT)])
    asked = [
        SamplingParams(
            max_tokens=rng.randint(64, 256),
            temperature=0.0 if rng.random() < 0.4 else TEMPERATURE,
            top_p=0.9,
            seed=number,
        )
        for number in range(len(prompts))
    ]
    outputs = LLM(folder, threads=torch.get_num_threads()).generate(prompts, asked, use_tqdm=False)
    return [
        [*prompt, *output.outputs[0].token_ids]
        for prompt, output in zip(prompts, outputs, strict=True)
    ]


def _questions(
    subjects: list[Subject], tokenizer: Tokenizer, rng: random.Random
) -> Iterator[list[int]]:
    """Chats up to where an answer is due."""
    ids = {name: token_id(tokenizer, name) for name in (USER, ASSISTANT, SYSTEM, END)}
    while True:
        for system, turns in conversations(subjects, rng):
            pieces = [(SYSTEM, system)] if system else []
            for question, answer in turns:
                pieces += [(USER, question), (ASSISTANT, answer)]
            prompt: list[int] = []
            for role, text in pieces[:-1]:
                prompt += [ids[role], *tokenizer.encode(text.strip()).ids, ids[END]]
            yield [*prompt, ids[ASSISTANT]]


@torch.no_grad()
def lessons(teacher: LlamaForCausalLM, texts: list[list[int]], length: int) -> Lessons:
    """What *teacher* thinks of *texts*, one after the other in rows of *length*."""
    teacher.eval()
    stream = np.concatenate([np.asarray(text, np.int64) for text in texts])
    rows = torch.from_numpy(stream[: len(stream) // length * length]).view(-1, length)
    ids, shares = [], []
    for row in rows:
        hidden = teacher.model(input_ids=row[None], use_cache=False).last_hidden_state[0]
        values, tops = teacher.lm_head(hidden).topk(KEPT, dim=-1)
        ids.append(tops.to(torch.int16))
        shares.append((values / TEMPERATURE).softmax(-1).half())
    return Lessons(rows, torch.stack(ids), torch.stack(shares))


def distil(
    student: LlamaForCausalLM,
    taught: list[Lessons],
    settings: Settings,
    report: Callable[[str], None] = print,
) -> int:
    """Teach *student* for so many minutes, or tokens; how many tokens it has read."""
    rng = random.Random(settings.seed)
    optimizers = make_optimizers(student, settings)
    student.train()
    began, progress, told, tokens = time.monotonic(), 0.0, 0.0, 0
    recent: list[float] = []
    while progress < 1.0:
        batch = rng.choices(taught, [share for _, share in LENGTHS])[0]
        length = batch.token_ids.shape[1]
        rows = torch.tensor(
            [rng.randrange(len(batch.token_ids)) for _ in range(settings.tokens_per_step // length)]
        )
        hidden = student.model(input_ids=batch.token_ids[rows], use_cache=False).last_hidden_state
        loss = OutputLoss.apply(
            hidden.flatten(0, 1),
            student.lm_head.weight,
            batch.top_ids[rows].flatten(0, 1).long(),
            batch.shares[rows].flatten(0, 1).float(),
            TEMPERATURE,
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial"] * settings.rate(progress)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        recent.append(loss.item())
        tokens += hidden.shape[0] * length
        seconds = time.monotonic() - began
        progress = seconds / (60 * settings.minutes)
        if settings.tokens is not None:
            progress = tokens / settings.tokens
        if progress - told >= 1 / settings.evaluations:
            told = progress
            report(
                f"{progress:4.0%} {tokens:>10,} tokens {seconds:6.0f} s  loss {np.mean(recent):.4f}"
            )
            recent.clear()
    return tokens


@torch.no_grad()
def agreement(student: LlamaForCausalLM, heard: Lessons) -> tuple[float, float]:
    """How often *student*'s likeliest token is the teacher's, and how far their chances overlap."""
    student.eval()
    logits = student(input_ids=heard.token_ids, use_cache=False).logits
    same = (logits.argmax(-1) == heard.top_ids[..., 0].long()).float().mean().item()
    shares = (logits / TEMPERATURE).softmax(-1).gather(-1, heard.top_ids.long())
    return same, torch.minimum(shares, heard.shares.float()).sum(-1).mean().item()

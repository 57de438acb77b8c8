#!/usr/bin/env python3
"""Make the demonstration model that ships in ``src/quire/models/demo``, and its draft model.

One command gathers the corpus from the running Python's standard library, trains the
tokenizer and the model, measures it on held-out text, lets it teach a smaller one what it
says, and writes all files::

    nice -n 19 python scripts/train_demo_model.py --minutes 60

With ``--only-draft``, the draft model alone. Needs Quire, torch, transformers, tokenizers and
safetensors; no network and no GPU.
"""

from __future__ import annotations

import argparse
import json
import lzma
import platform
import random
import tempfile
import zlib
from pathlib import Path

import torch
from demo_model import corpus, distillation, training
from demo_model import tokenizer as tokenization
from demo_model.chats import subjects
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoTokenizer, LlamaForCausalLM

DEFAULT_OUT = Path(__file__).resolve().parent.parent / "src" / "quire" / "models" / "demo"
SIZE_LIMIT = 8_000_000
DRAFT_SIZE_LIMIT = 1_000_000
SAMPLES = ("What does `itertools.chain` do?", "Explain the with statement.", "What is str.split?")
COMPLETIONS = ("Return a list of", "The class of an object", "If the optional argument")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder for the files")
    parser.add_argument("--minutes", type=float, default=60.0, help="wall time of the training")
    parser.add_argument("--tokens", type=int, help="training tokens, instead of --minutes")
    parser.add_argument("--only-draft", action="store_true", help="for the model in --out")
    parser.add_argument("--draft-minutes", type=float, default=15.0, help="of its training")
    parser.add_argument("--draft-prompts", type=int, default=5_000, help="that it is taught by")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1, help="of the split and the training")
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument(
        "--batch", type=int, default=training.Settings.tokens_per_step, help="tokens per step"
    )
    parser.add_argument("--dropout", type=float, default=training.Settings.dropout)
    parser.add_argument("--rate", type=float, default=training.Settings.learning_rate)
    return parser.parse_args()


def make_streams(
    documents: list[corpus.Document], tokenizer: Tokenizer, settings: training.Settings
) -> list[tuple[float, training.Stream]]:
    """Return the plain documents and the chats, with the share of each."""
    rng = random.Random(settings.seed)
    plain = training.document_rounds(documents, tokenizer, rng)
    chats = training.chat_rounds(subjects(documents), tokenizer, rng)
    return [
        (1 - settings.chat_share, training.Stream(plain, 0.5, rng)),
        (settings.chat_share, training.Stream(chats, 1.0, rng)),
    ]


def write_model(
    model: LlamaForCausalLM, weights: dict[str, torch.Tensor], tokenizer: Tokenizer, folder: Path
) -> None:
    """Write tokenizer, configuration and the weights rounded to bfloat16."""
    tokenization.save(tokenizer, folder, model.config.max_position_embeddings)
    write_weights(model, weights, folder, SIZE_LIMIT)


def write_weights(
    model: LlamaForCausalLM, weights: dict[str, torch.Tensor], folder: Path, limit: int
) -> None:
    """Write configuration and the weights rounded to bfloat16, of at most *limit* bytes."""
    rounded = {
        name: tensor.to(torch.bfloat16).contiguous()
        for name, tensor in weights.items()
        if name != "lm_head.weight"  # the embedding again
    }
    save_file(rounded, folder / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_diff_dict()
    config |= {
        "architectures": ["LlamaForCausalLM"],
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
    }
    generation = {
        "bos_token_id": config["bos_token_id"],
        "eos_token_id": config["eos_token_id"],
        "pad_token_id": config["pad_token_id"],
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.9,
    }
    for name, content in (("config", config), ("generation_config", generation)):
        text = json.dumps(content, indent=2, sort_keys=True)
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    size = (folder / "model.safetensors").stat().st_size
    if size > limit:
        raise SystemExit(f"model.safetensors has {size:,} bytes, more than {limit:,}")


def make_draft(
    teacher: Path, out: Path, documents: list[corpus.Document], options: argparse.Namespace
) -> None:
    """Teach a small model what the one in *teacher* says, and write it into *out*."""
    tokenizer = Tokenizer.from_file(str(teacher / "tokenizer.json"))
    rng = random.Random(options.seed)
    texts = distillation.spoken_texts(
        teacher, documents, subjects(documents), tokenizer, options.draft_prompts, rng
    )
    rng.shuffle(texts)
    model = LlamaForCausalLM.from_pretrained(teacher, dtype=torch.float32)
    taught, rest = [], texts[len(texts) // 50 :]
    for length, share in distillation.LENGTHS:
        part, rest = rest[: round(share * len(texts))], rest[round(share * len(texts)) :]
        taught.append(distillation.lessons(model, part, length))
    heard = distillation.lessons(model, texts[: len(texts) // 50], distillation.LENGTHS[0][0])
    student = distillation.make_student(model, distillation.draft_config(tokenizer))
    settings = training.Settings(
        minutes=options.draft_minutes,
        seed=options.seed,
        weight_decay=0.02,
        embedding_rate=3e-3,
        tokens_per_step=2048,
    )
    tokens = distillation.distil(student, taught, settings)
    out.mkdir(parents=True, exist_ok=True)
    write_weights(student, student.state_dict(), out, DRAFT_SIZE_LIMIT)
    (out / "generation_config.json").unlink()  # what it drafts is sampled as its target is
    same, overlap = distillation.agreement(student, heard)
    card = (Path(__file__).parent / "demo_model" / "draft_card.md").read_text(encoding="utf-8")
    facts = {
        "parameters": f"{student.num_parameters():,}",
        "weights": f"{(out / 'model.safetensors').stat().st_size:,} bytes, bfloat16",
        "taught by": f"{len(texts):,} texts that the model wrote, {sum(map(len, texts)):,} tokens",
        "tokens read": f"{tokens:,}",
        "its likeliest token is the model's": f"{same:.0%} of positions",
        "their chances at temperature 0.7 overlap by": f"{overlap:.0%}",
    }
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    (out / "README.md").write_text(card.replace("{{facts}}", rows), encoding="utf-8")


def samples(folder: Path) -> list[tuple[str, str]]:
    """Let the written files speak, at temperature 0: chats, then completions."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    spoken = []
    for prompt in (*SAMPLES, *COMPLETIONS):
        if prompt in SAMPLES:
            text = tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
            )
        else:
            text = prompt
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
        made = model.generate(ids, max_new_tokens=90, do_sample=False)[0, ids.shape[1] :]
        spoken.append((prompt, str(tokenizer.decode(made, skip_special_tokens=True))))
    return spoken


def compressed_bits(train_text: bytes, held_out_text: bytes) -> dict[str, float]:
    """Return what general compressors need for the held-out text, in bits per byte."""
    size = len(held_out_text)
    alone = len(lzma.compress(held_out_text, preset=9 | lzma.PRESET_EXTREME))
    before = len(lzma.compress(train_text, preset=9 | lzma.PRESET_EXTREME))
    after = len(lzma.compress(train_text + held_out_text, preset=9 | lzma.PRESET_EXTREME))
    return {
        "gzip": 8 * len(zlib.compress(held_out_text, 9)) / size,
        "xz": 8 * alone / size,
        "xz after the training text": 8 * (after - before) / size,
    }


def write_card(folder: Path, facts: dict[str, str], spoken: list[tuple[str, str]]) -> None:
    """Write the model card from what was measured."""
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    shown = "\n\n".join(
        f"> **{prompt}**\n>\n" + "\n".join(f"> {line}".rstrip() for line in text.split("\n"))
        for prompt, text in (spoken[0], spoken[1], spoken[len(SAMPLES)])
    )
    template = (Path(__file__).parent / "demo_model" / "card.md").read_text(encoding="utf-8")
    card = template.replace("{{facts}}", rows).replace("{{samples}}", shown)
    (folder / "README.md").write_text(card, encoding="utf-8")


def publish(staging: Path, out: Path) -> None:
    """Move the finished files into place, so that no reader meets half a file."""
    out.mkdir(parents=True, exist_ok=True)
    for path in staging.rglob("*.*"):
        place = out / path.relative_to(staging)
        place.parent.mkdir(exist_ok=True)
        path.chmod(0o644)
        path.replace(place)


def main() -> None:
    """Run every step; the files appear in ``--out`` only when all of them are done."""
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    if options.only_draft:
        with tempfile.TemporaryDirectory(dir=options.out.parent, prefix=".demo-") as temporary:
            documents, _ = corpus.split(corpus.gather(), options.seed)
            make_draft(options.out, Path(temporary) / "draft", documents, options)
            publish(Path(temporary), options.out)
        return
    settings = training.Settings(
        minutes=options.minutes, tokens=options.tokens, seed=options.seed,
        dropout=options.dropout, learning_rate=options.rate, tokens_per_step=options.batch,
    )  # fmt: skip
    train, held_out = corpus.split(corpus.gather(), options.seed)
    train_texts, held_out_texts = ([d.plain() for d in part] for part in (train, held_out))
    train_bytes, held_out_bytes = ("\n\n".join(t).encode() for t in (train_texts, held_out_texts))
    print(f"corpus: {len(train):,} documents, {len(train_bytes):,} bytes for training;")
    print(f"        {len(held_out):,} documents, {len(held_out_bytes):,} bytes held out")
    tokenizer = tokenization.train(train_texts, options.vocabulary)
    model = LlamaForCausalLM(training.model_config(tokenizer))
    training.add_dropout(model, settings.dropout)

    def evaluate() -> float:
        return training.bits_per_byte(model, tokenizer, held_out_texts)

    def report(line: str) -> None:
        print(line, flush=True)

    streams = make_streams(train, tokenizer, settings)
    result = training.train(model, streams, evaluate, settings, report)

    options.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.out.parent, prefix=".demo-") as temporary:
        staging = Path(temporary)
        write_model(model, result.weights, tokenizer, staging)
        weights = staging / "model.safetensors"
        rounded = {name: tensor.float() for name, tensor in load_file(weights).items()}
        model.load_state_dict(rounded, strict=False)
        facts = {
            "parameters": f"{model.num_parameters():,}",
            "weights": f"{weights.stat().st_size:,} bytes, bfloat16",
            "corpus": f"{len(train_bytes):,} bytes for training, {len(held_out_bytes):,} held out",
            "source": f"the standard library of Python {platform.python_version()}",
            "tokens read": f"{result.tokens:,} in {result.seconds / 60:.0f} minutes on a CPU",
            "held-out bits per byte": f"{evaluate():.3f}",
        }
        for name, bits in compressed_bits(train_bytes, held_out_bytes).items():
            facts[f"the same text with {name}"] = f"{bits:.3f} bits per byte"
        spoken = samples(staging)
        write_card(staging, facts, spoken)
        make_draft(staging, staging / "draft", train, options)
        publish(staging, options.out)
    for name, value in facts.items():
        print(f"{name}: {value}")
    for prompt, text in spoken:
        print(f"--- {prompt}\n{text}")


if __name__ == "__main__":
    main()

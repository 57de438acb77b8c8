"""``quire evaluate``: what each form of a model loses, and what it gains."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from quire.core.errors import ConfigError
from quire.tools.commands.command import Command
from quire.tools.commands.flags import add_engine_flags, add_flag, options
from quire.tools.commands.parser import Parser
from quire_lab.evaluation.forms import USUAL, parse_forms

_REPLACED = ("dtype", "quantization", "kv_cache_dtype")
_STEPS = 9  # of each form, at the most


def add_evaluate(parser: Parser) -> None:
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="directory, Hugging Face name or GGUF file "
        "(default: the demonstration model)",
    )  # fmt: skip
    names = ",".join(form.name for form in USUAL)
    group = parser.add_argument_group("evaluation")
    text = (
        "forms to measure, separated by commas, each WEIGHTS or WEIGHTS/KV. WEIGHTS: own (as the "
        f"files say), a dtype or a quantization; KV: a type of the KV cache (default: {names})"
    )
    add_flag(group, "forms", "str", names, text, value="FORMS")
    text = "UTF-8 text to predict (default: Python's language reference)"
    add_flag(group, "text", "str", None, text, value="FILE")
    text = "tokens of it to predict (default: 2048)"
    add_flag(group, "predictions", "int", 2048, text, value="N")
    text = "most tokens before a predicted one (default: 1024)"
    add_flag(group, "context", "int", 1024, text, value="N")
    text = "questions of each small task; 0: no tasks (default: 20)"
    add_flag(group, "questions", "int", 20, text, value="N")
    group.add_argument("--json", action="store_true", help="print all figures as JSON")
    text = "PNG or SVG file for a picture of loss and speed"
    add_flag(group, "picture", "str", None, text, value="FILE")
    add_engine_flags(parser)


def evaluate(arguments: argparse.Namespace) -> int:
    """Measure and print; the exit status."""
    chosen = options(arguments)
    for name in _REPLACED:
        if chosen[name] not in (None, "auto"):
            raise ConfigError(f"{name} is what forms replace: give it as one of --forms")
    for name, least in (("predictions", 1), ("context", 1), ("questions", 0)):
        if getattr(arguments, name) < least:
            raise ConfigError(f"{name} must be at least {least}, got {getattr(arguments, name)}")
    forms = parse_forms(arguments.forms.split(","))
    drawn = None if arguments.picture is None else Path(arguments.picture)
    if drawn is not None:
        from quire_lab.reports.style import require_matplotlib

        if drawn.suffix not in (".png", ".svg"):
            raise ConfigError(f"picture must end with .png or .svg, got {drawn.name!r}")
        require_matplotlib()
    text = _text(arguments.text)

    from tqdm import tqdm

    from quire_lab.commands.evaluation_report import as_json, lines, picture
    from quire_lab.evaluation import Evaluator, Judging

    with tqdm(
        total=_STEPS * (len(forms) + 1), bar_format="{desc} {bar} {elapsed}",
        disable=not sys.stderr.isatty(),
    ) as bar:  # fmt: skip

        def progress(what: str) -> None:
            bar.set_description_str(f"{what:<32}")
            bar.update()

        plan = Judging(text, arguments.context, arguments.predictions, arguments.questions)
        found = Evaluator(chosen, plan, progress).run(forms)
    print(json.dumps(as_json(found), indent=1) if arguments.json else "\n".join(lines(found)))
    if drawn is not None:
        painted = picture(found)
        drawn.write_bytes(painted.png if drawn.suffix == ".png" else painted.svg)
    return 0


def _text(file: str | None) -> str:
    if file is None:
        from pydoc_data.topics import topics

        return "\n\n".join(topics.values())
    try:
        return Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"text: {error}") from error


COMMAND = Command(add_evaluate, evaluate)

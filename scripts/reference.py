"""Writes the tables of docs/reference, of which the code knows all:

python scripts/reference.py
"""

from __future__ import annotations

import inspect
import json
import re
from argparse import PARSER
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from fastapi import FastAPI
from msgspec import to_builtins
from prometheus_client.parser import text_string_to_metric_families

from quire.blocks.events.config import KVEventsConfig
from quire.blocks.store import StoreCounts, Tiers
from quire.blocks.transfer import BlockFetcher, BlockServer
from quire.blocks.transfer.config import KVTransferConfig
from quire.capabilities.speculation.config import SpeculativeConfig
from quire.core.errors import QuireError
from quire.core.memory import Usage
from quire.core.protocol import SchedulingPolicy, Verdict
from quire.engine.config import EngineConfig
from quire.engine.config.neutral import ANY, COMMON, RARE, Neutral
from quire.http.app import create_app
from quire.http.config.server import ServerConfig
from quire.http.errors import UnknownModelError, explain, shape_for
from quire.http.metrics import ServerMetrics
from quire.text.params import SamplingParams
from quire.tools.cli import _parser
from quire.tools.commands.flags import ALSO, value_of
from quire.tools.commands.others import LLAMA_SERVER, OLLAMA, SERVER, VLLM, Program
from quire_cluster.config import DeployConfig
from quire_lab.simulation.catalogue.engines import DATA_SHEET, ENGINES, Attained
from quire_lab.simulation.published import RUNS, SOURCES

PAGES = Path(__file__).parents[1] / "docs/reference"
Json = Mapping[str, Any]

_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


def updated(page: str) -> str:
    """The page with its tables as they should be."""
    return _BLOCK.sub(lambda match: match[1] + "\n" + _text(match[2]) + "\n" + match[3], page)


def _text(name: str) -> str:
    return "".join(f"{line}\n" for line in TABLES[name]())


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Columns in which nothing stands are left out."""
    found = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    kept = [n for n in range(len(head)) if n == 0 or any(row[n] for row in found)]
    for row in [list(head), ["---"] * len(head), *found]:
        yield f"| {' | '.join(row[n] for n in kept)} |"


def _code(text: object) -> str:
    return f"`{text}`"


def _shown(default: object) -> str:
    """As JSON has it; nothing for what is nothing."""
    return "" if default in (None, (), [], {}) else _code(json.dumps(default))


# -- flags -------------------------------------------------------------------------------------


def _flags_of(kind: type, spell: Callable[[Field[Any]], str]) -> Callable[[], Iterator[str]]:
    """A table for each section of a config, in the order in which its fields name them."""

    def write() -> Iterator[str]:
        sections: dict[str, list[Field[Any]]] = {}
        for one in fields(kind):
            sections.setdefault(one.metadata.get("section", ""), []).append(one)
        for section, some in sections.items():
            if section:
                yield from (f"### {section[0].upper()}{section[1:]}", "")
            rows = ((spell(one), _default(one), _help(one)) for one in some)
            yield from _table(("", "default", "what it does"), rows)
            yield ""

    return write


def _flag(one: Field[Any]) -> str:
    if one.name == "model":
        return _code("MODEL")
    name = one.name.replace("_", "-")
    names = [f"--[no-]{name}" if _is_switch(one) else f"--{name}", *ALSO.get(one.name, ())]
    return ", ".join(_code(f"{spelled} {_takes(one)}".strip()) for spelled in names)


def _key(one: Field[Any]) -> str:
    return _code(f"{one.name} {_takes(one)}".strip())


def _is_switch(one: Field[Any]) -> bool:
    return str(one.type).startswith("bool")


def _takes(one: Field[Any]) -> str:
    """The values that it may have, or their unit or kind."""
    if _is_switch(one):
        return ""
    return f"{value_of(one)} ..." if str(one.type).startswith("Sequence") else value_of(one)


def _help(one: Field[Any]) -> str:
    """The help, with the choices or the range that are not in the first column."""
    text, low, high = (one.metadata[name] for name in ("help", "low", "high"))
    if one.metadata["choices"] and not value_of(one).startswith("{"):
        return f"{text}; one of {', '.join(map(_code, one.metadata['choices']))}"
    if low is not None and high is not None:
        return f"{text} ({low:,} to {high:,})"
    return str(text)


def _default(one: Field[Any]) -> str:
    """Where it is a value; else the help says what it comes to."""
    if isinstance(one.default, bool):
        return "on" if one.default else "off"
    if one.default in (None, (), ""):
        return ""
    if one.name.endswith("_bytes") and isinstance(one.default, int):
        return _code(f"{one.default >> 20}MiB")
    return _code(f"{one.default:g}" if isinstance(one.default, float) else one.default)


def _commands() -> Iterator[str]:
    """In the order of ``quire --help``."""
    (commands,) = (one for one in _parser([])._actions if one.nargs == PARSER)
    rows = ((_code(f"quire {one.dest}"), str(one.help)) for one in commands._get_subactions())
    return _table(("command", "what it does"), rows)


def _neutral(options: Iterable[Neutral]) -> Iterator[str]:
    """By the reason why they change nothing."""
    named: dict[str, list[str]] = {}
    for one in options:
        flag = _code("--" + one.name.replace("_", "-"))
        if one.values == (ANY,) or (one.is_switch and len(one.values) == 2):
            pass  # any value
        elif not one.values:
            flag += " (empty)"
        else:
            flag += f" {' or '.join(json.dumps(value) for value in one.values)}"
        named.setdefault(one.why, []).append(flag)
    return _table(("why", "flags"), ((why, ", ".join(some)) for why, some in named.items()))


def _others(program: Program) -> Callable[[], Iterator[str]]:
    """What becomes of each of a program's flags and variables, those with one answer together."""

    def write() -> Iterator[str]:
        rows = [("works", program.works)]
        rows += [(f"changes nothing: {why}", names) for why, names in program.same.items()]
        rows += [(f"write {text}", names) for text, names in program.instead.items()]
        rows += [(f"cannot be: {why}", names) for why, names in program.cannot.items()]
        return _table(
            ("what becomes of it", "flags and variables"),
            ((text, ", ".join(map(_code, names.split()))) for text, names in rows),
        )

    return write


# -- fields ------------------------------------------------------------------------------------


def _sampling() -> Iterator[str]:
    def row(one: Field[Any]) -> tuple[str, str, str, str]:
        text, words = one.metadata["help"], one.metadata["allowed"].words
        if not one.metadata["http"]:
            text += " (in Python only)"
        return _code(one.name) + " *" * one.metadata["flag"], text, words, _shown(one.default)

    return _table(
        ("parameter", "what it does", "allowed", "left out"), map(row, fields(SamplingParams))
    )


def _doors(kind: str) -> Iterator[str]:
    """What each body of a kind may hold, by the app's own description."""
    document = _app().openapi()
    schemas = document["components"]["schemas"]
    paths: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        body = operations.get("post", {}).get("requestBody")
        if body is not None:
            ref = body["content"]["application/json"]["schema"]["$ref"]
            paths.setdefault(ref.rpartition("/")[2], []).append(path)
    sampled = [name for name in paths if schemas[name]["properties"].keys() >= _SAMPLED]
    of_all = _common(schemas[name]["properties"] for name in sampled)
    described = _Described(schemas)
    common = {"properties": {name: one for name, one in of_all.items() if name not in _OURS}}
    if kind == "openai":
        yield from ("### What generates", "", ", ".join(f"`{paths[name][0]}`" for name in sampled))
        yield from ("take the [sampling parameters](fields.md#sampling-parameters), and:", "")
        yield from described.table(common)
    for name, some in paths.items():
        if kind != _kind_of(some):
            continue
        own = dict(schemas[name]["properties"])
        if name in sampled:
            own = {field: one for field, one in own.items() if field not in of_all}
        if own:
            yield from ("", f"### {', '.join(map(_code, some))}", "")
            if name in sampled:
                yield from ("The [fields of all that generate](bodies.md#what-generates), and:", "")
            yield from described.table({**schemas[name], "properties": own})


def _kind_of(paths: Sequence[str]) -> str:
    """Whose API they are of, or what they make."""
    if any(word in path for path in paths for word in ("embed", "score", "rerank")):
        return "vectors"
    known = (path.startswith("/v1/") and "messages" not in path for path in paths)
    return "openai" if any(known) or "tokenize" in paths[0] else "others"


_OURS = {one.name for one in fields(SamplingParams)}
_SAMPLED = {"best_of", "logit_bias", "min_tokens"}  # who has these has the others


def _common(several: Iterable[Json]) -> dict[str, Any]:
    """The fields that all of them have, and that are the same."""
    first, *others = several

    def shared(name: str) -> bool:
        same = (name in other and other[name] == first[name] for other in others)
        return all(name in other for other in others) if name in _OURS else all(same)

    return {name: one for name, one in first.items() if shared(name)}


class _Described:
    """Tables of fields. An object that several bodies hold is written out once."""

    def __init__(self, schemas: Json) -> None:
        self._schemas = schemas
        self._written: set[str] = set()

    def table(self, schema: Json) -> Iterator[str]:
        head = ("field", "takes", "left out", "what it does")
        return _table(head, self._rows(schema))

    def _rows(self, schema: Json, before: str = "") -> Iterator[tuple[str, str, str, str]]:
        required = schema.get("required", ())
        for name, one in schema["properties"].items():
            kind, inner = _kind(self._schemas, one)
            once = inner is not None and inner["title"] not in self._written and not before
            default = "" if inner else _shown(one.get("default"))
            if inner is not None:
                kind += f" `{inner['title']}`"
            default = "must be given" if name in required else default
            yield _code(before + name), kind, default, one.get("description", "")
            if inner is not None and once:
                self._written.add(inner["title"])
                yield from self._rows(inner, f"{name}.")


def _kind(schemas: Json, schema: Json) -> tuple[str, Json | None]:
    """What a field takes, in words; and the schema of an object that it is."""
    if "$ref" in schema:
        one = schemas[schema["$ref"].rpartition("/")[2]]
        return ("object", one) if "properties" in one else _kind(schemas, one)
    for several in ("anyOf", "oneOf"):
        if several in schema:
            kinds = [_kind(schemas, one) for one in schema[several] if one != {"type": "null"}]
            words = dict.fromkeys(word for word, _ in kinds)
            return " or ".join(words), kinds[0][1] if len(kinds) == 1 else None
    if "const" in schema:
        return _code(json.dumps(schema["const"])), None
    if "enum" in schema:
        return ", ".join(_code(json.dumps(one)) for one in schema["enum"]), None
    if schema.get("type") == "array":
        return f"list of {_plural(_kind(schemas, schema.get('items', {}))[0])}", None
    words = {"string": "text", "boolean": "true or false", "object": "object"}
    kind = str(schema.get("type", "any value"))
    return words.get(kind, kind) + _bounds(schema), None


def _plural(word: str) -> str:
    first, _, rest = word.partition(" ")
    many = f"{first}s" if first in ("text", "object", "integer", "number", "list") else first
    return f"{many} {rest}".rstrip()


def _bounds(schema: Json) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f", {low:g} to {high:g}"
    if low is not None:
        return f", at least {low:g}"
    longest = schema.get("maxLength")
    return f", at most {longest:,} characters" if longest else ""


def _app() -> FastAPI:
    engine = MagicMock()
    engine.input_processor.max_model_len = engine.input_processor.max_characters = 1
    engine.input_processor.tokenizer.response_template = None
    return create_app(engine, ["quire-demo"], ServerConfig())


# -- metrics -----------------------------------------------------------------------------------


def _metrics() -> Iterator[str]:
    """As a server tells them that has everything: what it says of each, and its samples' labels."""
    rows: dict[str, tuple[str, ...]] = {}
    theirs: set[str] = set()
    for transfer in (BlockServer, BlockFetcher):
        for metric in text_string_to_metric_families(_exposition(transfer)):
            if metric.name.startswith("vllm:"):
                theirs.add(metric.name.removeprefix("vllm:"))
            elif not metric.name.endswith("_created"):
                name = metric.name + "_total" * (metric.type == "counter")
                labels = dict.fromkeys(label for one in metric.samples for label in one.labels)
                named = ", ".join(_code(one) for one in labels if one not in ("model_name", "le"))
                rows[metric.name] = _code(name), metric.type, named, metric.documentation
    return _table(
        ("metric", "type", "labels", "what it is", "`vllm:` too"),
        (
            (*row, "yes" * (name.removeprefix("quire:") in theirs))
            for name, row in sorted(rows.items())
        ),
    )


def _exposition(transfer: type) -> str:
    engine, state = MagicMock(), MagicMock()
    engine.scheduler.queue.policy = SchedulingPolicy.FAIR
    engine.scheduler.stats.decisions = {one.value: 0 for one in Verdict}
    engine.scheduler.allocator.usage.return_value = Usage(*(1 for _ in Usage._fields))
    engine.stats.slot_seconds = dict.fromkeys(Usage._fields, 0.0)
    engine.stats.accepted_by_position = [0]
    engine.capabilities.store.__class__ = Tiers
    engine.capabilities.store.disk.counts = StoreCounts()
    engine.capabilities.transfer.__class__ = transfer
    metrics = ServerMetrics(engine, "demo", "both")
    metrics.observe_aborted(0)
    state.operation, state.served_by.return_value, state.error = "chat", "demo", None
    for name in (
        *("num_prompt_tokens", "num_output_tokens", "e2e_latency", "ttft", "tpot"),
        *("grammar_seconds", "beside_seconds"),
    ):
        setattr(state.metrics, name, 0.0)
    for (watcher,), _ in engine.events.add.call_args_list:
        watcher.ended(state)
    return metrics.exposition().decode()


# -- errors ------------------------------------------------------------------------------------


_MODULES = "quire.core.errors", "quire.http.errors"


def _exceptions() -> Iterator[str]:
    """Each with what it is, and what HTTP makes of it."""

    def rows(kind: type[QuireError]) -> Iterator[tuple[str, ...]]:
        problem = explain(_example(kind))
        told = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")
        above = "" if kind is QuireError else _code(kind.__bases__[0].__name__)
        yield (
            _code(kind.__name__),
            above,
            told,
            str(problem.status),
            _code(problem.code) if problem.code else "",
        )
        here = [one for one in kind.__subclasses__() if one.__module__ in _MODULES]
        for below in sorted(here, key=lambda one: one.__name__):
            yield from rows(below)

    return _table(("exception", "is a", "when", "status", "code"), rows(QuireError))


def _example(kind: type[QuireError]) -> QuireError:
    """One of the kind; the first line of its class says the rest."""
    takes = inspect.signature(kind.__init__).parameters.values()
    plain = any(one.kind is one.VAR_POSITIONAL for one in takes)
    given = [1 if one.annotation in ("int", "float") else "x" for one in takes][1:]
    return kind("x") if plain else kind(*given)


def _shapes() -> Iterator[str]:
    paths = {
        "OpenAI": "/v1",
        "Anthropic": "/v1/messages",
        "Ollama": "/api",
        "llama.cpp": "/completion",
    }
    problem = explain(_example(UnknownModelError))

    def row(of: str, path: str) -> tuple[str, str]:
        return of, _code(json.dumps(to_builtins(shape_for({"path": path}).of(problem))))

    return _table(
        ("API", "an unknown model, with status 404"), (row(*one) for one in paths.items())
    )


# -- plans -------------------------------------------------------------------------------------


def _accuracy() -> Iterator[str]:
    """How far off four of five runs were that were held out, by engine and machine."""

    def shown(share: float | None) -> str:
        return "" if share is None else f"{share:.0%}"

    rows = []
    for engine in ENGINES.values():
        for attained in engine.attained:
            for one in attained.errors:
                figures = map(shown, (one.first_token, one.end, one.rate))
                if not one.machine and len(attained.machines) == 1:
                    continue  # told already
                machine = one.machine or f"all{_made(attained)}"
                rows.append((engine.title, one.models, machine, str(one.runs), *figures))
    alone = map(shown, (DATA_SHEET.first_token, DATA_SHEET.end, DATA_SHEET.rate))
    rows.append(("nothing fitted", "", "all", str(DATA_SHEET.runs), *alone))
    head = ("engine", "", "machine", "runs", "first token", "end", "output tokens per second")
    return _table(head, rows)


def _made(attained: Attained) -> str:
    """Of which machines its figures are, where they are not of all."""
    if len(attained.machines) == 1:
        return f" of {attained.machines[0]}"
    return " of AMD" if attained.machines else ""


def _attained() -> Iterator[str]:
    rows = [
        (
            f"{engine.title}{_made(one).replace(' of', ' on')}",
            f"{one.compute_share:.0%}",
            f"{one.bandwidth_share:.0%}",
            "" if one.step_us is None else f"{one.step_us:.2g} µs",
            f"{one.launch_us:.2g} µs",
            f"{one.first_token_ms:.2g} ms",
        )
        for engine in ENGINES.values()
        for one in engine.attained
    ]
    head = (
        "engine",
        "of its FLOP/s",
        "of its bandwidth",
        "a matrix, in any step",
        "a matrix, to launch prompts",
        "beside steps, to a first token",
    )
    return _table(head, rows)


def _sources() -> Iterator[str]:
    rows = []
    for name, source in SOURCES.items():
        runs = [run for run in RUNS if run.source == name]
        machines = ", ".join(dict.fromkeys(run.machine for run in runs))
        title = f"[{source['title']}]({source['url']})"
        note = source.get("note", "")
        rows.append((title, source["date"], str(len(runs)), machines, note))
    return _table(("source", "of", "runs", "machines", ""), rows)


# -- all of it ---------------------------------------------------------------------------------


TABLES: Mapping[str, Callable[[], Iterator[str]]] = {
    "commands": _commands,
    "engine_flags": _flags_of(EngineConfig, _flag),
    "server_flags": _flags_of(ServerConfig, _flag),
    "deploy_flags": _flags_of(DeployConfig, _flag),
    "speculative_config": _flags_of(SpeculativeConfig, _key),
    "kv_events_config": _flags_of(KVEventsConfig, _key),
    "kv_transfer_config": _flags_of(KVTransferConfig, _key),
    "neutral_flags": lambda: _neutral(COMMON),
    "rare_flags": lambda: _neutral((*RARE, *SERVER)),
    "of_vllm": _others(VLLM),
    "of_llama_server": _others(LLAMA_SERVER),
    "of_ollama": _others(OLLAMA),
    "sampling": _sampling,
    "doors": lambda: _doors("openai"),
    "vector_doors": lambda: _doors("vectors"),
    "other_doors": lambda: _doors("others"),
    "metrics": _metrics,
    "exceptions": _exceptions,
    "shapes": _shapes,
    "accuracy": _accuracy,
    "attained": _attained,
    "published": _sources,
}


def main() -> None:
    for page in PAGES.glob("*.md"):
        page.write_text(updated(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()

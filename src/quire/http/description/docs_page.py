"""/docs: the API's description as one page, which needs no script and nothing from elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#222;
background:#fff}code,pre{font:14px/1.4 ui-monospace,monospace;background:#f3f3f5;border-radius:4px}
code{padding:1px 4px}pre{padding:.7rem;overflow-x:auto}summary{cursor:pointer;padding:.3rem 0}
summary b{display:inline-block;min-width:4.5rem}table{border-collapse:collapse;width:100%}
td,th{text-align:left;vertical-align:top;padding:.25rem .6rem;border-bottom:1px solid #ddd}
details{border-bottom:1px solid #ddd}h2{margin-top:2.5rem}
@media(prefers-color-scheme:dark){body{background:#16161a;color:#ddd}code,pre{background:#26262c}
td,th,details{border-color:#333}a{color:#8ab4ff}}
"""
_SHOWN_VALUES = 12  # of a choice


def page(document: Mapping[str, Any]) -> str:
    """HTML of an OpenAPI document."""
    info, schemas = document["info"], document["components"]["schemas"]
    routes = "".join(
        _route(method.upper(), path, operation)
        for path, operations in sorted(document["paths"].items())
        for method, operation in operations.items()
    )
    types = "".join(_type(name, schemas[name]) for name in sorted(schemas))
    title = escape(f"{info['title']} {info['version']}")
    return (
        f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{title}</title>"
        '<meta name=viewport content="width=device-width">'
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1>{_text(info['description'])}"
        '<p>For programs the same is in <a href="openapi.json">openapi.json</a>.</p>'
        f"<h2>Routes</h2>{routes}<h2>Types</h2>{types}</body></html>"
    )


def _route(method: str, path: str, operation: Mapping[str, Any]) -> str:
    parts = [_text(operation.get("description", ""))]
    parameters = operation.get("parameters", [])
    if parameters:
        rows = ((one["name"], _kind(one["schema"]), one["in"]) for one in parameters)
        parts.append(_table(("parameter", "type", "where"), rows))
    body = operation.get("requestBody")
    if body:
        schema = body["content"]["application/json"]["schema"]
        parts.append(f"<p>Takes {_kind(schema)}.</p>")
    parts.append(_table(("status", "", "answer"), _answers(operation["responses"])))
    summary = escape(operation.get("summary", ""))
    return (
        f"<details><summary><b>{escape(method)}</b><code>{escape(path)}</code> {summary}</summary>"
        f"{''.join(parts)}</details>"
    )


def _answers(responses: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for status, response in responses.items():
        for media, content in (response.get("content") or {"": {"schema": {}}}).items():
            schema = content.get("schema", {})
            kind = _kind(schema.get("x-event", schema)) if schema else ""
            yield status, _inline(response["description"]), f"{escape(media)} {kind}"


def _type(name: str, schema: Mapping[str, Any]) -> str:
    needed = schema.get("required", ())
    rows = (
        (field, _kind(told), _inline(_about(told)), "needed" if field in needed else _default(told))
        for field, told in schema.get("properties", {}).items()
    )
    about, anchor = _text(schema.get("description", "")), escape(name)
    table = _table(("field", "type", "", "left out"), rows)
    return f"<details id={anchor}><summary><code>{anchor}</code></summary>{about}{table}</details>"


def _table(names: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    """The cells of the first column are plain text, the others HTML."""
    head = "".join(f"<th>{name}</th>" for name in names)
    lines = "".join(
        f"<tr><td><code>{escape(first)}</code></td>{''.join(f'<td>{cell}</td>' for cell in cells)}"
        for first, *cells in rows
    )
    return f"<table><tr>{head}</tr>{lines}</table>" if lines else ""


def _kind(schema: Mapping[str, Any]) -> str:
    """A type in a few words, with links to those that have a table."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        kinds = [_kind(one) for one in schema["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])[:_SHOWN_VALUES]
        return ", ".join(f"<code>{escape(json.dumps(value))}</code>" for value in values)
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return escape(str(schema.get("type", "anything")))


def _about(schema: Mapping[str, Any]) -> str:
    return str(schema.get("description", ""))


def _default(schema: Mapping[str, Any]) -> str:
    default = schema.get("default")
    return "" if default is None else f"<code>{escape(json.dumps(default))}</code>"


def _text(text: str) -> str:
    paragraphs = (part for part in text.split("\n\n") if part.strip())
    return "".join(f"<p>{_inline(part)}</p>" for part in paragraphs)


def _inline(text: str) -> str:
    return re.sub("`([^`]*)`", r"<code>\1</code>", escape(text))

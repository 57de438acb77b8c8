"""Answers beside what /openapi.json says of them: each that a test's clients get is compared."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

import httpx
from fastapi import FastAPI
from jsonschema import Draft202012Validator
from msgspec import convert
from msgspec.json import schema_components

from quire.http.openapi import schemas_of

_MOST = 2**20  # bytes of an answer that is looked at


class Described:
    """What an app says of its answers."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    def check(self, response: httpx.Response) -> None:
        """An httpx hook: AssertionError where a JSON answer is none of those that are told."""
        kind = response.headers.get("content-type", "")
        if kind != "application/json" or int(response.headers.get("content-length", 0)) > _MOST:
            return
        response.read()
        path = response.request.url.path
        found = _operation(_described(self._app), response.request.method, path)
        if found is not None:
            where, operation = found
            status = str(response.status_code)
            told = operation["responses"]
            assert status in told, f"{where} answers {status}, of which nothing is told"
            _compare(_described(self._app), f"{where} {status}", told[status], response.content)


def as_described(kind: Any, content: str | bytes) -> Any:
    """JSON as an answer of that type; AssertionError if it is not as such are described."""
    (schema,), _ = schema_components([kind], ref_template="#/components/schemas/{name}")
    document = {"components": {"schemas": schemas_of([kind])}}
    told = {"content": {"application/json": {"schema": schema}}}
    _compare(document, str(kind), told, content)
    return convert(json.loads(content), kind)


def _compare(document: Any, where: str, told: Any, content: str | bytes) -> None:
    schema = told.get("content", {}).get("application/json", {}).get("schema")
    assert schema is not None, f"of the JSON of {where} nothing is told"
    whole = json.dumps({**schema, "components": document["components"]}, sort_keys=True)
    errors = [
        f"{error.json_path}: {error.message[:300]}"
        for error in _validator(whole).iter_errors(json.loads(content))
    ]
    assert not errors, f"{where} is not as it is described: {errors[:3]}"


@lru_cache(maxsize=256)
def _validator(schema: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(schema))


_documents: dict[tuple[object, ...], Any] = {}


def _described(app: FastAPI) -> Any:
    """Apps of the same settings describe themselves alike; each time takes long."""
    config = app.state.service.config
    key = (bool(config.api_key), config.root_path, config.dashboard, config.api_key_metrics,
           config.disable_fastapi_docs, config.allow_runtime_lora_updating,
           len(app.routes))  # fmt: skip
    if key not in _documents:
        _documents[key] = app.openapi()
    return _documents[key]


def _operation(document: Any, method: str, path: str) -> tuple[str, Any] | None:
    """The one that answers, if the document has it: literal paths go before those with names."""
    for a_name in ("[^/]+", ".+"):  # some names hold a slash
        for template in sorted(document["paths"], key=lambda one: one.count("{")):
            pattern = re.sub(r"\\{\w+\\}", a_name, re.escape(template))
            operation = document["paths"][template].get(method.lower())
            if operation is not None and re.fullmatch(pattern, path):
                return f"{method} {template}", operation
    return None

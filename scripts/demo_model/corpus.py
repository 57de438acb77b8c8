"""Gather the documentation text of Python's standard library.

The demonstration model must be reproducible on any machine without a download, so
its corpus is the one body of English prose that every Python installation carries:
docstrings, long comment blocks and the language reference of ``pydoc_data``.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import re
import sysconfig
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

SKIPPED_PARTS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "_bundled"}

# C modules hold much of the best-known documentation, and no .py file shows it.
# Only modules that do nothing on import are listed.
# fmt: off
C_MODULES = (
    "builtins", "math", "cmath", "itertools", "_functools", "_collections", "_operator", "time",
    "sys", "_io", "array", "zlib", "_struct", "select", "_socket", "_decimal", "_json",
    "_bisect", "_heapq", "_random", "_pickle", "binascii", "_csv", "mmap", "fcntl", "pwd",
    "grp", "resource", "_signal", "errno", "gc", "marshal", "posix", "unicodedata", "_hashlib",
    "_thread", "_weakref", "_sqlite3", "_zoneinfo", "_ctypes", "termios", "atexit",
    "faulthandler", "_asyncio", "_bz2", "_lzma", "_contextvars", "_queue", "_statistics",
    "_string", "_tracemalloc", "_uuid", "_warnings", "_datetime", "_sre", "_ssl",
    "_elementtree", "pyexpat", "_abc", "_codecs", "_imp", "_locale", "_stat", "_symtable",
    "_winapi", "msvcrt",
)
# fmt: on

# The name under which users know what an implementation module holds.
PUBLIC_NAMES = {
    "posix": "os", "posixpath": "os.path", "ntpath": "os.path", "_sre": "re", "pyexpat":
    "xml.parsers.expat", "_elementtree": "xml.etree.ElementTree", "_pydecimal": "decimal",
    "_pyio": "io", "_collections_abc": "collections.abc", "_weakrefset": "weakref",
    "_thread": "_thread", "_pydatetime": "datetime", "_hashlib": "hashlib",
}  # fmt: skip

# Modules that only their package shows: readers know ``asyncio.run``, not ``asyncio.runners``.
RE_EXPORTED = re.compile(
    r"^(asyncio|json|concurrent\.futures|unittest(?=\.(?:case|suite|loader|result|runner|main)$)"
    r"|multiprocessing(?=\.(?:pool|queues|process|context|synchronize)$))\.\w+$"
)

UNWANTED = re.compile(r"copyright|all rights reserved|licen[sc]e[ds]?\b|warrant(y|ies)", re.I)
HEADING = re.compile(r"^(\S[^\n]*)\n([*=\-~^\"])\2{2,}\n", re.M)
DEFINITION = re.compile(r"^((?:[a-z]\w*\.)[\w.]+)\(([^\n]*)\)\n\n((?:   [^\n]*\n|\n)+)", re.M)


@dataclass(frozen=True)
class Document:
    """One piece of documentation: where it is from, what it describes, and its text."""

    module: str
    name: str
    kind: str
    text: str

    @property
    def title(self) -> str:
        """The name a reader would type: ``len`` rather than ``builtins.len``."""
        return self.name.removeprefix("builtins.")

    def plain(self) -> str:
        """The text as a stand-alone document of the corpus."""
        if self.kind in ("topic", "comment"):
            return self.text
        return f"{self.title}\n\n{self.text}"


def public_name(module: str) -> str:
    """Return the documented name of a module, e.g. ``functools`` for ``_functools``."""
    if module in PUBLIC_NAMES:
        return PUBLIC_NAMES[module]
    if module in C_MODULES:
        return module.lstrip("_")
    return module.removesuffix(".__init__")


def clean(text: str) -> str:
    """Normalise white space and drop legal notices, which would only waste capacity."""
    text = inspect.cleandoc(text.replace("\r", "").replace("\t", "    ").replace("\f", ""))
    paragraphs = re.split(r"\n\s*\n", text)
    kept = [p.rstrip() for p in paragraphs if p.strip() and not UNWANTED.search(p)]
    return "\n\n".join("\n".join(line.rstrip() for line in p.split("\n")) for p in kept)


def _source_files(root: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if SKIPPED_PARTS.isdisjoint(parts) and not parts[0].startswith("_sysconfigdata"):
            yield ".".join(parts).removesuffix(".__init__"), path


def _docstrings(module: str, node: ast.AST, prefix: str, in_class: bool) -> Iterator[Document]:
    """Yield the docstrings below *node*, without importing anything."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}.{child.name}"
            is_class = isinstance(child, ast.ClassDef)
            doc = ast.get_docstring(child, clean=False)
            if doc:
                kind = "class" if is_class else "method" if in_class else "function"
                yield Document(module, name, kind, clean(doc))
            yield from _docstrings(module, child, name, is_class)
        elif isinstance(child, ast.If | ast.Try | ast.With):
            yield from _docstrings(module, child, prefix, in_class)


def _comments(module: str, source: str) -> Iterator[Document]:
    """Yield the comment blocks that read as prose: several long lines with sentences."""
    for number, match in enumerate(re.finditer(r"(?:^[ \t]*#[^\n]*\n){4,}", source, re.M)):
        lines = [re.sub(r"^[ \t]*#+ ?", "", line) for line in match[0].splitlines()]
        text = clean("\n".join(lines))
        letters = sum(c.isalpha() or c == " " for c in text)
        is_prose = len(text) > 200 and letters > 0.85 * len(text) and ". " in text
        if is_prose and "-*-" not in text:
            yield Document(module, f"{module}#{number}", "comment", text)


def from_sources() -> Iterator[Document]:
    """Yield the docstrings and prose comments of every standard-library source file."""
    for module, path in _source_files(Path(sysconfig.get_path("stdlib"))):
        try:
            source = path.read_text(encoding="utf-8")
            tree = ast.parse(source)
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue
        name = public_name(module)
        doc = ast.get_docstring(tree, clean=False)
        if doc:
            yield Document(name, name, "module", clean(doc))
        home = RE_EXPORTED.sub(r"\1", name)
        yield from _docstrings(home, tree, home, in_class=False)
        yield from _comments(name, source)


def _members(module: str, owner: ModuleType | type, prefix: str) -> Iterator[Document]:
    for attribute, value in sorted(vars(owner).items()):
        is_class = isinstance(value, type)
        is_code = callable(value) or inspect.isdatadescriptor(value)
        doc = getattr(value, "__doc__", None)
        home = getattr(value, "__module__", None)
        if not is_code or not isinstance(doc, str) or (is_class and prefix.count(".") > 3):
            continue
        if is_class and home not in (module, public_name(module), owner.__name__):
            continue
        in_class = isinstance(owner, type)
        name = f"{prefix}.{attribute}"
        kind = "class" if is_class else "method" if in_class else "function"
        if in_class and not callable(value):
            kind = "attribute"
        yield Document(public_name(module), name, kind, clean(inspect.getdoc(value) or doc))
        if is_class and not in_class:
            yield from _members(module, value, name)


def from_c_modules() -> Iterator[Document]:
    """Yield the documentation of the compiled modules that this Python has."""
    for module_name in C_MODULES:
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            continue
        name = public_name(module_name)
        if isinstance(module.__doc__, str):
            yield Document(name, name, "module", clean(module.__doc__))
        yield from _members(module_name, module, name)


def from_topics() -> Iterator[Document]:
    """Yield the sections of the language reference, each once.

    Topics contain one another (``compound`` holds ``with``, ``for``, ...), hence the cut
    at headings: equal sections are then equal documents, and are dropped as such.
    """
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    for key in sorted(topics, key=lambda k: (len(topics[k]), k)):
        pieces = HEADING.split(topics[key].replace("\r", ""))
        for title, body in zip(pieces[1::3], pieces[3::3], strict=True):
            underline = "*" * len(title)
            text = f"{title}\n{underline}\n\n{body.strip()}"
            if len(body.strip()) > 80:
                yield Document("reference", title, "topic", text)


def definitions(topic: Document) -> Iterator[Document]:
    """Yield what a reference section says about single functions, e.g. ``str.split``."""
    for match in DEFINITION.finditer(topic.text + "\n"):
        text = clean(textwrap.dedent(match[3]))
        if len(text) > 40:
            yield Document("reference", match[1], "method", text)


def gather() -> list[Document]:
    """Return all documents, each text once, public modules before private ones."""
    found = [*from_topics(), *from_c_modules(), *from_sources()]
    found.sort(key=lambda d: any(part.startswith("_") for part in d.module.split(".")))
    seen: set[str] = set()
    unique = []
    for document in found:
        key = re.sub(r"\W+", " ", document.text).strip().lower()
        if document.kind == "topic":
            key = key.removeprefix(re.sub(r"\W+", " ", document.name).strip().lower())
        if len(document.text) >= 20 and key not in seen:
            seen.add(key)
            unique.append(document)
    unique.sort(key=lambda d: d.module)
    return unique


def _is_held_out(document: Document, seed: int, share: float) -> bool:
    """Decide by a hash of the last part of the name.

    ``io.StringIO.read`` and ``socket.SocketIO.read`` say nearly the same, and so do the C
    and the Python version of one class: things that share a name must share a side.
    """
    name = document.name if document.kind == "topic" else document.name.rsplit(".", 1)[-1]
    digest = hashlib.sha256(f"{seed}:{name.lower()}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def _long_lines(text: str) -> list[str]:
    stripped = (re.sub(r"\s+", " ", line).strip() for line in text.splitlines())
    return [line for line in stripped if len(line) >= 40]


def split(
    documents: list[Document], seed: int, share: float = 0.055
) -> tuple[list[Document], list[Document]]:
    """Split into training and held-out documents.

    A candidate that shares a long line with the training text would flatter the
    result, so it goes back to training.
    """
    train = [d for d in documents if not _is_held_out(d, seed, share)]
    candidates = [d for d in documents if _is_held_out(d, seed, share)]
    known = {line for d in train for line in _long_lines(d.text)}
    held_out = [d for d in candidates if known.isdisjoint(_long_lines(d.text))]
    kept = set(held_out)
    return [d for d in documents if d not in kept], held_out

"""The cost of a template's filters, tests, methods and comparisons, known before they begin.

In characters: of the text that they make, and of the text that they read. Values that hold others
cost more than their text, and so do operations that are not linear.
"""

from __future__ import annotations

import re
from collections.abc import Callable, ItemsView, Iterable, KeysView, Mapping, Sequence, ValuesView
from itertools import chain
from typing import Any

from jinja2.utils import Namespace

MOST_CHARACTERS = 2**26  # in all texts and lists that are made on the way
ITEM = 16  # characters: of an item of a list or a mapping
_LIST = 4 * ITEM  # an empty one
_SCANNED = 16  # of what is searched without making anything, as much as one that is made
_SCALARS = (str, bool, int, float, type(None))
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_WIDTH = re.compile(r"\d+")
_WIDTH_GIVEN = re.compile(r"\*|\{[^{}]*\{")  # %*d, {:{}}
_NAMES = "_Namespace__attrs"  # where Jinja keeps what a namespace holds
_DIGITS = 9  # of a width: more are too many anyway


def weigh(value: object) -> int:
    """The size of a value as a text. An item that is in it more than once counts as often, but is
    read once.
    """
    return len(value) if isinstance(value, str) else _weigh(value, {})


def _weigh(value: object, known: dict[int, int]) -> int:
    """known: by id, what has been weighed; a deep value is a RecursionError, as for Python."""
    match value:
        case Mapping():
            parts: Iterable[object] = chain(value, value.values())
        case list() | tuple() | set() | frozenset() | KeysView() | ValuesView():
            parts = value
        case ItemsView():
            parts = chain.from_iterable(value)
        case Namespace():
            return _weigh(getattr(value, _NAMES), known)
        case str():
            return len(value)
        case _:
            return 0
    found = known.get(id(value))
    if found is None:
        known[id(value)] = 0  # should it lie in itself
        found = ITEM * len(value)
        for part in parts:
            if isinstance(part, str):
                found += len(part)
            elif not isinstance(part, _SCALARS):
                found += _weigh(part, known)
        known[id(value)] = found
    return found


def of_comparison(operator: str, left: object, right: object) -> int:
    """The cost of ``left == right`` and the like: the items of both, however deep."""
    if operator in ("in", "notin"):
        if isinstance(right, str):
            return len(right) // _SCANNED
        return ITEM * _length(right) if isinstance(left, _SCALARS) else weigh(right) + weigh(left)
    if isinstance(left, str) and isinstance(right, str):
        return min(len(left), len(right)) // _SCANNED
    if isinstance(left, _SCALARS) or isinstance(right, _SCALARS):
        return 0
    return min(weigh(left), weigh(right))


def of_form(form: object, given: object) -> int:
    """The cost of ``form % given``, or ``form.format(given)``: widths are in one of the two."""
    text = str(form) if isinstance(form, str) else ""
    widths = sum(int(width[:_DIGITS]) for width in _WIDTH.findall(text))
    asked = len(_WIDTH_GIVEN.findall(text))
    if asked:
        widths += asked * sum(map(_amount, _flat(given)))
    return widths + len(text) * max(weigh(given), 1)


def of_filter(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """The cost of a filter; args begin with what it is applied to."""
    return _of(_FILTERS, name, args, kwargs)


def of_test(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """The cost of a test; args begin with what is tested."""
    if name in _COMPARING and len(args) == 2:
        return of_comparison("in" if name == "in" else "==", *args)
    return _of(_TESTS, name, args, kwargs)


def of_method(owner: object, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """The cost of a method of a Python value; of any other function, with no owner."""
    if isinstance(owner, str):
        return _of(_METHODS, name, (owner, *args), kwargs)
    if isinstance(owner, (list, tuple)) and name in ("index", "count"):
        return ITEM * len(owner) + sum(of_comparison("in", arg, owner) for arg in args)
    held = ITEM * len(owner) if isinstance(owner, Mapping) and name == "copy" else 0
    return held + _weights(*args, **kwargs)


# -- each of them ------------------------------------------------------------------------------


def _of(
    costs: Mapping[str, Callable[..., int]], name: str, args: Sequence[Any], kwargs: Any
) -> int:
    try:
        return costs.get(name, _weights)(*args, **kwargs)
    except TypeError:  # it cannot be called so, as it will say itself
        return 0


def _weights(*args: Any, **kwargs: Any) -> int:
    return sum(map(weigh, chain(args, kwargs.values())))


def _amount(value: object) -> int:
    """The size of a number, or of a text."""
    if isinstance(value, str):
        return max(len(value), 1)
    return max(abs(value), 1) if isinstance(value, int) else 1


def _length(value: Any) -> int:
    try:
        return len(value)
    except TypeError:
        return 1


def _flat(given: Any) -> list[Any]:
    found: list[Any] = []
    for one in given if isinstance(given, (list, tuple)) else [given]:
        if isinstance(one, Mapping):
            found += one.values()
        else:
            found += one if isinstance(one, (list, tuple)) else [one]
    return found


def _items(value: Any, *_: Any, **__: Any) -> int:
    return ITEM * _length(value)


def _ordered(value: Any, *_: Any, **__: Any) -> int:
    length = _length(value)
    return 4 * ITEM * length + weigh(value) * max(length.bit_length(), 1)


def _batch(value: Any, linecount: Any = 1, fill_with: Any = None) -> int:
    return ITEM * (_length(value) + (_amount(linecount) if fill_with is not None else 0))


def _slice(value: Any, slices: Any = 1, fill_with: Any = None) -> int:
    return ITEM * _length(value) + _LIST * _amount(slices)


def _wide(value: Any, width: Any = 80, *_: Any) -> int:
    return weigh(value) + _amount(width)


def _indent(s: Any, width: Any = 4, first: bool = False, blank: bool = False) -> int:
    text = s if isinstance(s, str) else ""
    lines = sum(map(text.count, _LINE_ENDS)) + 2
    return weigh(s) + lines * _amount(width)


def _expandtabs(value: str, tabsize: Any = 8) -> int:
    return len(value) + (value.count("\t") + 1) * _amount(tabsize)


def _join(value: Any, d: Any = "", attribute: Any = None) -> int:
    return weigh(value) + ITEM * _length(value) + _length(value) * len(str(d))


def _join_method(separator: str, value: Any = ()) -> int:
    return _join(value, separator)


def _replace(s: Any, old: Any = "", new: Any = "", count: Any = None) -> int:
    text, sought = str(s), str(old)
    found = text.count(sought) if sought else len(text) + 1
    return len(text) + found * len(str(new))


def _round(value: Any, precision: Any = 0, method: str = "common") -> int:
    return _amount(precision) ** 2 << 6  # of a power of ten


def _sum(iterable: Any, attribute: Any = None, start: Any = 0) -> int:
    held = ITEM * _length(iterable)
    if isinstance(start, (int, float)):
        return held
    return held + (weigh(iterable) + weigh(start)) * _length(iterable)  # each is a copy


def _wordwrap(
    s: Any,
    width: Any = 79,
    break_long_words: Any = True,
    wrapstring: Any = None,
    *_: Any,
    **__: Any,
) -> int:
    text, at_most = s if isinstance(s, str) else "", _amount(width)
    long = max(map(len, text.split()), default=0)
    lines = len(text) // at_most + sum(map(text.count, _LINE_ENDS)) + 1
    # Each line copies what is left of a long word.
    return _LIST * len(text) + lines * (_amount(wrapstring) + long)


def _divided(value: Any, num: Any = 2) -> int:
    return of_form(value, num) if isinstance(value, str) else 0


def _split(value: str, sep: Any = None, maxsplit: Any = -1) -> int:
    pieces = value.count(sep) if isinstance(sep, str) and sep else len(value) // 2
    if isinstance(maxsplit, int) and maxsplit >= 0:
        pieces = min(pieces, maxsplit)
    return len(value) + ITEM * (pieces + 1)


def _rsplit(value: str, sep: Any = None, maxsplit: Any = -1) -> int:
    return _split(value, sep, maxsplit) + _searched(value, sep)


def _searched(value: str, sought: Any = None, *_: Any) -> int:
    """The cost of a search from the end, or for each of some characters: it may compare all of one
    with the other.
    """
    return len(value) + len(value) * _length(sought) // _SCANNED


def _translate(value: str, table: Any = None) -> int:
    widest = max(map(_length, table.values()), default=1) if isinstance(table, Mapping) else 1
    return len(value) * max(widest, 1)


def _format(value: Any, *args: Any, **kwargs: Any) -> int:
    return of_form(value, [args, kwargs])


def _nothing(*_: Any, **__: Any) -> int:
    """No cost: it does not look into values, or goes through them on demand."""
    return 0


_FILTERS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(
        ("attr", "d", "default", "first", "items", "last", "length", "count"), _nothing
    ),
    **dict.fromkeys(("map", "reject", "rejectattr", "select", "selectattr"), _nothing),
    **dict.fromkeys(("list", "random", "reverse"), _items),
    **dict.fromkeys(("dictsort", "groupby", "max", "min", "sort", "unique"), _ordered),
    "batch": _batch,
    "center": _wide,
    "format": _format,
    "indent": _indent,
    "join": _join,
    "replace": _replace,
    "round": _round,
    "slice": _slice,
    "sum": _sum,
    "wordwrap": _wordwrap,
}
_METHODS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _wide),
    **dict.fromkeys(("lstrip", "rfind", "rindex", "rpartition", "rstrip", "strip"), _searched),
    **dict.fromkeys(("format", "format_map"), _format),
    "expandtabs": _expandtabs,
    "join": _join_method,
    "replace": _replace,
    "rsplit": _rsplit,
    "split": _split,
    "splitlines": _split,
    "translate": _translate,
}
_TESTS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("divisibleby", "even", "odd"), _divided),
    **dict.fromkeys(("lower", "upper"), _weights),
    **dict.fromkeys(
        (
            "boolean", "callable", "defined", "escaped", "false", "filter", "float", "integer",
            "iterable", "mapping", "none", "number", "sameas", "sequence", "string", "test",
            "true", "undefined",
        ),
        _nothing,
    ),
}  # fmt: skip
_COMPARING = {
    "!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le",
    "lessthan", "lt", "ne",
}  # fmt: skip

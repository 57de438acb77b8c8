"""Numbers of JSON as regular expressions: exact, however large, and with no endless digits.

A number is a ``Decimal`` or an integer here, never a float.
"""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

MOST_DIGITS = 40  # on either side of the point, where no bound asks for more
LONGEST_BOUND = 400  # digits that a bound may be written with
_FIRST_EXPONENT, _MOST_EXPONENT = 15, 999  # in bounds below, numbers are written without any
_TAIL = f"[0-9]{{0,{MOST_DIGITS}}}"
_FRACTION = rf"(\.[0-9]{{1,{MOST_DIGITS}}})?"
_NATURAL = f"(0|[1-9][0-9]{{0,{MOST_DIGITS - 1}}})"
_MANTISSA = rf"[1-9]{_FRACTION}"

INTEGER = f"/-?{_NATURAL}/"
NUMBER = rf"/-?{_NATURAL}{_FRACTION}([eE][+-]?[0-9]{{1,3}})?/"


class Bounds(NamedTuple):
    """What a schema says of a number's size; None: nothing."""

    least: Decimal | None = None
    above: bool = False  # the least itself is out
    most: Decimal | None = None
    below: bool = False

    @property
    def integers(self) -> tuple[int | None, int | None]:
        """The least and the greatest integer within them."""
        least = most = None
        if self.least is not None:
            least = -_floor(self.least.copy_negate())
            least += self.above and least == self.least
        if self.most is not None:
            most = _floor(self.most)
            most -= self.below and most == self.most
        return least, most

    @property
    def empty(self) -> bool:
        """Whether nothing lies within them."""
        if self.least is None or self.most is None:
            return False
        out = self.above or self.below
        return self.least > self.most or (self.least == self.most and out)

    @property
    def mirrored(self) -> Bounds:
        """The bounds of the numbers with the other sign."""
        least, most = (
            None if one is None else one.copy_negate() for one in (self.most, self.least)
        )
        return Bounds(least, self.below, most, self.above)


def literal_of(value: int | Decimal) -> str:
    """How JSON spells a number: whole where it is whole, without needless zeros."""
    if isinstance(value, int) or not value:
        return str(int(value))
    value = _short(value)
    plain = -MOST_DIGITS < value.adjusted() < MOST_DIGITS
    return f"{value:f}" if plain else str(value).lower().replace("e+", "e")


def is_whole(value: Decimal) -> bool:
    exponent = _short(value).as_tuple().exponent
    return isinstance(exponent, int) and (exponent >= 0 or not value)


def integers(bounds: Bounds) -> str | None:
    """A terminal's expression for the integers within bounds; None where there are none."""
    least, most = bounds.integers
    if least is None and most is None:
        return INTEGER
    if least is not None and most is not None and least > most:
        return None
    parts = []
    if most is None or most >= 0:
        parts.append(_naturals(max(least or 0, 0), most))
    if least is None or least < 0:
        low = 1 if most is None else max(-most, 1)
        parts.append(f'"-" ({_naturals(low, None if least is None else -least)})')
    return " | ".join(parts)


def numbers(bounds: Bounds) -> str | None:
    """The same for all numbers within bounds."""
    if bounds.least is None and bounds.most is None:
        return NUMBER
    if bounds.empty:
        return None
    parts = []
    if bounds.most is None or bounds.most > 0 or (not bounds.most and not bounds.below):
        parts.append(_positive(bounds))
    if bounds.least is None or bounds.least < 0:
        parts.append(f'"-" ({_positive(bounds.mirrored, zero=False)})')
    return " | ".join(parts)


def _positive(bounds: Bounds, *, zero: bool = True) -> str:
    """Numbers that are no less than zero: as they are mostly written and, far out, by exponents."""
    least, above = bounds.least, bounds.above
    if least is None or least < 0:
        least, above = Decimal(0), not zero
    elif not least:
        least, above = Decimal(0), above or not zero
    most, each = bounds.most, []
    edge = Decimal(10) ** MOST_DIGITS
    if least < edge:
        up_to = None if most is None or most >= edge else _up_to(most, bounds.below)
        each.append(_both(_from(least, above), up_to))
    if not least and (most is None or most >= 1):
        each.append(rf"/{_MANTISSA}[eE]-0{{0,2}}[1-9][0-9]{{0,2}}/")
    if most is None or most.adjusted() >= _FIRST_EXPONENT:
        each.append(_by_exponent(least, above, most, bounds.below))
    return " | ".join(f"({one})" for one in each)


def _by_exponent(least: Decimal, above: bool, most: Decimal | None, below: bool) -> str:
    """Numbers from 1 on, as a mantissa below ten and an exponent."""
    low = max(least.adjusted(), 0) if least else 0
    high = _MOST_EXPONENT if most is None else min(most.adjusted(), _MOST_EXPONENT)
    each = []
    for exponent in {low, high}:
        mantissa = f"/{_MANTISSA}/"
        if exponent == least.adjusted():
            mantissa += f" & {_from(shifted(least, -exponent), above)}"
        if most is not None and exponent == most.adjusted():
            mantissa += f" & {_up_to(shifted(most, -exponent), below)}"
        each.append(f"({mantissa}) /[eE][+]?{exponent}/")
    if low + 1 < high:
        each.append(f"/{_MANTISSA}[eE][+]?/ ({_both(_at_least(low + 1), _at_most(high - 1))})")
    return " | ".join(each)


def _naturals(least: int, most: int | None) -> str:
    """Natural numbers within bounds; a bound of more digits than are allowed is none."""
    if most is not None and most >= 10 ** max(MOST_DIGITS, len(str(least))):
        most = None
    return _both(_at_least(least), None if most is None else _at_most(most))


def _both(first: str, second: str | None) -> str:
    return first if second is None else f"{first} & {second}"


def _at_least(least: int) -> str:
    """Natural numbers from ``least`` on, within the number of digits that is allowed."""
    return f"/({_naturals_from(least)})/"


def _at_most(most: int) -> str:
    return f"/({_naturals_to(most)})/"


def _naturals_from(least: int) -> str:
    if not least:
        return _NATURAL
    digits = str(least)
    more = max(MOST_DIGITS, len(digits)) - 1
    longer = [f"[1-9][0-9]{{{len(digits)},{more}}}"] if more >= len(digits) else []
    return "|".join([digits, *_greater(digits), *longer])


def _naturals_to(most: int) -> str:
    digits = str(most)
    shorter = [f"[1-9][0-9]{{0,{len(digits) - 2}}}"] if len(digits) > 1 else []
    zero = ["0"] if len(digits) > 1 else []
    return "|".join([digits, *_lesser(digits, first=len(digits) > 1), *shorter, *zero])


def _greater(digits: str, tail: str | None = None) -> list[str]:
    """Expressions for greater numbers of as many digits. tail: what follows in their place."""
    return [
        f"{digits[:i]}[{int(digit) + 1}-9]{tail or f'[0-9]{{{len(digits) - 1 - i}}}'}"
        for i, digit in enumerate(digits)
        if digit < "9"
    ]


def _lesser(digits: str, tail: str | None = None, *, first: bool = False) -> list[str]:
    """Expressions for lesser numbers of as many digits. first: the first digit may not be 0."""
    return [
        f"{digits[:i]}[{low}-{int(digit) - 1}]{tail or f'[0-9]{{{len(digits) - 1 - i}}}'}"
        for i, digit in enumerate(digits)
        if int(digit) > (low := 1 if first and not i else 0)
    ]


def _from(least: Decimal, above: bool) -> str:
    """Numbers from ``least`` on, or above it, in plain digits."""
    whole, part = _parts(least)
    more = f"({_naturals_from(int(whole) + 1)}){_FRACTION}"
    if part:
        rest = f"0*[1-9]{_TAIL}" if above else _TAIL
        equal = rf"\.({'|'.join([part + rest, *_greater(part, _TAIL)])})"
    else:
        equal = rf"\.0{{0,{MOST_DIGITS}}}[1-9]{_TAIL}" if above else _FRACTION
    return f"/({whole}{equal}|{more})/"


def _up_to(most: Decimal, below: bool) -> str:
    """Numbers up to ``most``, or below it, in plain digits."""
    whole, part = _parts(most)
    each = []
    if whole != "0":
        each.append(f"({_naturals_to(int(whole) - 1)}){_FRACTION}")
    if part:
        last = [part[:-1]] if below else [part + f"0{{0,{MOST_DIGITS}}}"]
        shorter = [part[:i] for i in range(1, len(part))]
        inner = [one for one in (*last, *shorter, *_lesser(part, _TAIL)) if one]
        each.append(rf"{whole}(\.({'|'.join(inner)}))?" if inner else whole)
    elif not below:
        each.append(rf"{whole}(\.0{{1,{MOST_DIGITS}}})?")
    return f"/({'|'.join(each)})/"


def _parts(value: Decimal) -> tuple[str, str]:
    """The digits before the point and those after it, of a number that is not negative."""
    whole, _, part = f"{value.copy_abs():f}".partition(".")
    return whole, part.rstrip("0")


def shifted(value: Decimal, places: int) -> Decimal:
    """The value times a power of ten, exactly."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    return Decimal((sign, digits, exponent + places))


def _short(value: Decimal) -> Decimal:
    """The same value without zeros at the end of its digits."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    while len(digits) > 1 and not digits[-1]:
        digits, exponent = digits[:-1], exponent + 1
    return Decimal((sign, digits, exponent))


def _floor(value: Decimal) -> int:
    whole = int(value)
    return whole - (whole > value)

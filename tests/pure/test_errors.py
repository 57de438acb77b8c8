"""What a message quotes of a value, and of another library's error."""

import pytest

from quire.core.errors import ModelError, reason, shown, visible


@pytest.mark.parametrize(
    "value", [None, True, 3, -2.5, "a", "it's", "\ud800", [], [1, "b"], {}, {"a": [1, {"b": None}]}]
)
def test_small_values_are_shown_as_their_repr(value: object) -> None:
    assert shown(value) == repr(value)


def test_a_tuple_is_shown_as_the_list_that_it_was_in_json() -> None:
    assert shown((1, 2)) == "[1, 2]"


def test_other_things_are_shown_by_their_type() -> None:
    assert shown(b"x" * 10**6) == "a value of type bytes"
    assert shown(type("T" * 10**6, (), {})()).startswith("a value of type TTT")


def deep(levels: int) -> list[object]:
    value: list[object] = []
    for _ in range(levels):
        value = [value]
    return value


class Counting(list[int]):
    """A list that tells how many of its items were looked at."""

    seen = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        for item in super().__iter__():
            self.seen += 1
            yield item


@pytest.mark.parametrize(
    "value",
    [
        "x" * 10**7,
        "\0" * 10**7,
        "\ud800" * 1000,
        [1] * 10**6,
        [[[0] * 10**6] * 10**6],
        dict.fromkeys(range(10**6)),
        {"k" * 10**6: 1},
        deep(100_000),
        ["", [], {}] * 10**5,
        [10**150] * 5,
    ],
    ids=lambda value: type(value).__name__,
)
def test_long_and_deep_values_are_cut(value: object) -> None:
    text = shown(value)
    assert len(text) <= 200
    assert text.endswith("...")
    text.encode()


def test_of_a_long_list_only_the_beginning_is_looked_at() -> None:
    values = Counting(range(10**6))
    shown(values)
    assert values.seen < 200


@pytest.mark.parametrize("value", [2**2000, -(10**400), 1 << 10**7], ids=int.bit_length)
def test_huge_integers_are_told_by_their_size(value: int) -> None:
    # Python refuses to spell integers of more than 4300 digits.
    assert shown(value) == f"an integer of {value.bit_length()} bits"
    assert shown([value]) == f"[an integer of {value.bit_length()} bits]"


@pytest.mark.parametrize(("error", "said"), [
    (ValueError(" two\n  lines "), "two lines"), (ValueError(), "ValueError"),
    (MemoryError(), "there is too little memory"), (MemoryError("of 5 GiB"), "of 5 GiB"),
    (RecursionError("maximum recursion depth exceeded"), "it is nested too deeply"),
    (ValueError("x" * 10**7), "x" * 197 + "..."),
    (ValueError("half \ud800 a pair"), r"half \ud800 a pair"),
])  # fmt: skip
def test_another_library_s_error_is_quoted_in_a_line(error: Exception, said: str) -> None:
    assert reason(error) == said


ORDERS = "\x1b]0;owned\x07\x1b[2J\nquire: all is well\r\x9b1m\u202e\u2028"


def test_no_message_orders_a_terminal_about() -> None:
    said = str(ModelError(f"the tensor {ORDERS} of Zoë's 模型"))
    escaped = r"\x1b]0;owned\x07\x1b[2J\nquire: all is well\r\x9b1m\u202e\u2028"
    assert said == f"the tensor {escaped} of Zoë's 模型"
    assert said.isprintable() and visible(said) == said

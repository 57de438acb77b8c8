"""Values of JSON, as text, that no field of a body means: too long, too many, too deep."""

from __future__ import annotations

import json

HUGE = 100_000
HOSTILE = {
    "text": json.dumps("x" * HUGE),
    "half a character": json.dumps("x" * HUGE + "\ud800"),
    "digits": "9" * HUGE,
    "fraction": "-" + "9" * HUGE + ".5",
    "texts": json.dumps(["x" * HUGE, 5]),
    "objects": json.dumps([{}] * 8000),
    "object": json.dumps({"x" * HUGE: "y" * HUGE}),
    "entries": json.dumps({str(number): "y" for number in range(HUGE // 10)}),
    "levels": "[" * 150 + "]" * 150,
}

"""What agents in Python are asked to do: three calls, the second of which fills the context."""

import json
import os

URL, MODEL = os.environ["QUIRE_URL"], os.environ["QUIRE_MODEL"]
CALLS = [
    ["weather", {"city": "Paris"}],
    ["read", {"path": "long.txt"}],
    ["weather", {"city": "Rome"}],
]
TASK = "DO " + json.dumps(CALLS)
LONG = "word " * int(os.environ["QUIRE_CONTEXT"])
CUT = "It was long."
DONE = "Done."
heard: list[str] = []


def weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: its name
    """
    heard.append(city)
    return "hot"


def read(path: str) -> str:
    """A file.

    Args:
        path: where it is
    """
    heard.append(path)
    return LONG


def check() -> None:
    """All was called, once each, and in turn."""
    assert heard == ["Paris", "long.txt", "Rome"], heard
    heard.clear()

"""A deterministic world: the whole server but its sockets, on a virtual clock, among faults.

``script`` says what happens in a life: who asks for what and when, and what goes wrong. It is made
from a seed. ``life`` lets it happen to the real app, engine and scheduler over the fake model, and
checks after every event that nobody is hurt who should not be. ``python -m world SEED`` (from
``tests``; ``make world ARGS=SEED``) tells a life again, and makes a failing one shorter.
"""

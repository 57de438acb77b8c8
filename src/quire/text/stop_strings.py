"""Stop strings, all searched for at once while a text grows."""

from __future__ import annotations

from collections.abc import Iterable


class StopAutomaton:
    """The automaton of Aho and Corasick (1975) over some strings, shared by many texts.

    A node represents the longest end of a text that begins one of the strings, the root none. The
    cost of a character, averaged over a text, does not depend on the number of strings.
    """

    ROOT = 0

    def __init__(self, strings: Iterable[str]) -> None:
        self._next: dict[tuple[int, str], int] = {}  # (node, character) -> a longer beginning
        self._shorter = [self.ROOT]  # the longest proper end of each that is a beginning too
        self.lengths = [0]  # characters that each node stands for
        self.complete: list[str | None] = [None]  # the longest string that ends at each node
        edges = []
        for string in strings:
            edges += self._add(string)
        for parent, char, node in sorted(edges, key=lambda edge: self.lengths[edge[2]]):
            if parent != self.ROOT:
                shorter = self.step(self._shorter[parent], char)
                self._shorter[node] = shorter
                if self.complete[node] is None:
                    self.complete[node] = self.complete[shorter]

    def step(self, node: int, char: str) -> int:
        """The node of a text that was at ``node`` and goes on with ``char``."""
        while (found := self._next.get((node, char))) is None:
            if node == self.ROOT:
                return self.ROOT
            node = self._shorter[node]
        return found

    def _add(self, string: str) -> list[tuple[int, str, int]]:
        """The edges that a string adds, whose nodes still lack their ``_shorter``."""
        node, edges = self.ROOT, []
        for length, char in enumerate(string, 1):
            child = self._next.get((node, char))
            if child is None:
                child = self._next[node, char] = len(self.lengths)
                self.lengths.append(length)
                self._shorter.append(self.ROOT)
                self.complete.append(None)
                edges.append((node, char, child))
            node = child
        self.complete[node] = string
        return edges


class StopStrings:
    """Releases text only when it can no longer be the beginning of a stop string.

    The text ends where the first stop string is complete, in whatever pieces it came; of several
    that end there, the longest counts.

    automaton: None if there are no stop strings.
    """

    def __init__(self, automaton: StopAutomaton | None, include_in_output: bool) -> None:
        self._automaton = automaton
        self._include = include_in_output
        self._node = StopAutomaton.ROOT
        self._held = ""  # what the node stands for
        self.matched: str | None = None  # the stop string that ended the text

    def push(self, text: str, *, may_end: bool = True) -> str:
        """The text that may be shown now. Once ``matched`` is set, nothing follows.

        may_end: whether a stop string that is complete now ends the text. One that only begins
        here may end it later.
        """
        automaton = self._automaton
        if automaton is None:
            return text
        node, known = self._node, len(self._held)
        self._held += text
        for end, char in enumerate(text, known + 1):
            node = automaton.step(node, char)
            if may_end and (matched := automaton.complete[node]) is not None:
                self.matched = matched
                return self._release(end if self._include else end - len(matched))
        self._node = node
        return self._release(len(self._held) - automaton.lengths[node])

    def flush(self) -> str:
        """The text held back, when no more comes."""
        return self._release(len(self._held))

    def _release(self, end: int) -> str:
        text, self._held = self._held[:end], self._held[end:]
        return text

"""How long a chain of things can be of which each leads to others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def longest_chain(links: Mapping[str, Iterable[str]], lengths: Mapping[str, int]) -> int:
    """The most that ``lengths`` add up to along a chain that enters nothing twice.

    At most: of things that lead to each other in a circle, all count. Links to unknown things lead
    nowhere.
    """
    totals: dict[str, int] = {}  # of chains from a thing on, once they are known
    found, lowest = dict[str, int](), dict[str, int]()
    path: list[str] = []  # things found and not yet in a circle that is complete
    for root in links:
        if root in found:
            continue
        todo = [(root, iter(links[root]))]
        found[root] = lowest[root] = len(found)
        path.append(root)
        while todo:
            here, others = todo[-1]
            for other in others:
                if other not in links or other in totals:
                    continue
                if other in found:
                    lowest[here] = min(lowest[here], found[other])
                    continue
                found[other] = lowest[other] = len(found)
                path.append(other)
                todo.append((other, iter(links[other])))
                break
            else:
                todo.pop()
                if todo:
                    lowest[todo[-1][0]] = min(lowest[todo[-1][0]], lowest[here])
                if lowest[here] == found[here]:
                    circle = path[path.index(here) :]
                    del path[-len(circle) :]
                    _complete(circle, links, lengths, totals)
    return max(totals.values(), default=0)


def _complete(
    circle: list[str],
    links: Mapping[str, Iterable[str]],
    lengths: Mapping[str, int],
    totals: dict[str, int],
) -> None:
    beyond = max((totals.get(one, 0) for name in circle for one in links[name]), default=0)
    total = sum(lengths[name] for name in circle) + beyond
    totals.update(dict.fromkeys(circle, total))

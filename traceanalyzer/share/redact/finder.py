"""Finds names of hosts and users in a text, however many there are, and puts a word for each in its place.

A name ends where letters and digits end. One that can be nothing else is found in a CamelCase word too. What could be
wrong: a name whose letters are spelt with look-alikes is not found.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from traceanalyzer.share.redact.levels import digest

_DEEPEST = 40
_FEW = 24
_NO_HASH = r"(?!(?<=host:)[0-9a-f]{12}(?![A-Za-z0-9]))"
"""What this module puts in a name's place is not looked at again."""
_BORDERS = (r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])")
_CAMEL = (r"(?:(?<![A-Za-z0-9])|(?-i:(?=[A-Z][a-z])))", r"(?:(?![A-Za-z0-9])|(?-i:(?=[A-Z])))")
_DOMAIN = r"(?:\.[A-Za-z0-9-]++)*+"


class Finder:
    """Finds names.

    Args:
        distinctive: hosts and users that can be nothing else.
        ordinary: those that are looked for as words of their own only.
    """

    def __init__(
        self, distinctive: tuple[Iterable[str], Iterable[str]], ordinary: tuple[Iterable[str], Iterable[str]] = ((), ())
    ) -> None:
        """Compile what is looked for."""
        parts = []
        self._names: set[str] = set()
        for number, ((left, right), (hosts, users)) in enumerate(
            zip((_CAMEL, _BORDERS), (distinctive, ordinary), strict=True)
        ):
            for group, names, more in (("host", hosts, _DOMAIN), ("user", users, "")):
                listed = {_lower(name) for name in names}
                if listed:
                    self._names |= listed
                    parts.append(f"{left}{_NO_HASH}(?P<{group}{number}>{_any_of(sorted(listed))}){right}{more}")
        self._pattern = re.compile("|".join(parts), re.IGNORECASE) if parts else None

    def replace(self, text: str, lower: str, kinds: Counter[str]) -> str:
        """A text without the names, counted.

        Args:
            text: any text.
            lower: the same in lower case; may be longer.
            kinds: where they are counted.
        """
        if self._pattern is None:
            return text
        if len(self._names) <= _FEW and not any(name in lower for name in self._names):
            return text

        def replaced(match: re.Match[str]) -> str:
            group = match.lastgroup or ""
            if group.startswith("user"):
                kinds["users"] += 1
                return "[user]"
            kinds["hosts"] += 1
            return f"host:{digest(match[group].lower())}"

        return self._pattern.sub(replaced, text)


def _lower(name: str) -> str:
    """In lower case, where that is as long."""
    lower = name.lower()
    return lower if len(lower) == len(name) else name


def _any_of(names: Sequence[str], depth: int = 0) -> str:
    """A pattern for any of sorted names, which share their beginnings: so its time does not grow with their number."""
    if depth == _DEEPEST:
        return f"(?:{'|'.join(re.escape(name) for name in reversed(names))})"
    parts = []
    for first, group in groupby(names, key=lambda name: name[:1]):
        if first:
            begun = list(group)
            shared = _shared(begun[0], begun[-1])
            rest = _any_of([name[len(shared) :] for name in begun], depth + 1) if len(begun) > 1 else ""
            parts.append(re.escape(shared) + rest)
    return f"(?:{'|'.join(parts)}){'' if names[0] else '?'}"


def _shared(one: str, other: str) -> str:
    """How two texts begin alike."""
    least = min(len(one), len(other))
    return one[: next((at for at in range(least) if one[at] != other[at]), least)]

"""How much is taken out of a trace, and the account of what was.

    none        nothing; the file says so
    default     names of hosts and users, paths, addresses, credentials, free text, and metadata that no report needs
    strict      also names of the user's own functions, processes and models, and call stacks

What could be wrong: see `shapes` and `places`; what has no known shape and looks like the name of an op stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal

Level = Literal["strict", "default", "none"]
LEVELS: tuple[Level, ...] = ("none", "default", "strict")
"""From the least to the most."""

VERSION = 1
"""Of the rules: a file that an older version redacted is worth redacting again."""

KINDS = (
    "hosts", "users", "paths", "credentials", "emails", "addresses", "annotations", "inputs", "texts", "names",
    "metadata",
)  # fmt: skip
"""What is counted: occurrences, after reading the file once."""

MOST_EXAMPLES = 20
_LONGEST_EXAMPLE = 500


@dataclass(frozen=True, slots=True)
class Example:
    """One text before and after, for a dry run; never stored."""

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Redaction:
    """What was done to one file. `examples`, by kind, stay on this machine."""

    level: Level
    version: int = VERSION
    counts: Mapping[str, int] = field(default_factory=dict)
    examples: Mapping[str, tuple[Example, ...]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """How many places were changed or dropped."""
        return sum(self.counts.values())


class Tally:
    """Counts what is changed, and remembers a few examples of each kind."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.counts: Counter[str] = Counter()
        self._examples: dict[str, dict[str, str]] = {}

    def show(self, kinds: Mapping[str, int], before: str, after: str) -> None:
        """Remember an example of the kinds of change that were made to one text."""
        for kind in kinds:
            shown = self._examples.setdefault(kind, {})
            if len(shown) < MOST_EXAMPLES:
                shown.setdefault(before[:_LONGEST_EXAMPLE], after[:_LONGEST_EXAMPLE])

    def result(self, level: Level) -> Redaction:
        """The account."""
        examples = {
            kind: tuple(Example(before, after) for before, after in self._examples[kind].items())
            for kind in KINDS
            if kind in self._examples
        }
        return Redaction(level, VERSION, {kind: self.counts[kind] for kind in KINDS if self.counts[kind]}, examples)


def digest(text: str) -> str:
    """Tells texts apart without saying them: 12 hexadecimal digits. Whoever guesses a text can confirm the guess."""
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:12]

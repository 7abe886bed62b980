"""Reads the recorder's own block of a trace (top-level key `traceanalyzer`): known sections of plain values, no more.

The block is text from somebody else's machine and goes into every report, so nothing is passed through: what is no
section of the schema, nests below a section, is named like a secret or looks like one is left out. What could be wrong:
a secret without any of the usual marks, under an innocent name, looks like any other text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite

Section = Mapping[str, object]

SCHEMA = 1
SECTIONS = ("model", "gpu", "window", "sampling", "overhead", "service", "steplog", "redaction")

_MOST_KEYS = 64
_MOST_ITEMS = 64
_LONGEST_TEXT = 200
_KEY = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NEVER = re.compile(r"(?:env|argv|cmdline|key)\Z|prompt|token(?!s_(?:in|out)\Z)|password|secret", re.IGNORECASE)
_NO_TEXT = re.compile(
    r"(?:\A|[_.-])(?:(?:env|argv|cmdline|key|apikey)(?:\Z|[_.-])|prompt|token|passw|secret|credential|cookie|auth)",
    re.IGNORECASE,
)
"""Names under which text is left out and numbers are kept: `kv_bytes_per_token` is a number."""
_CREDENTIAL = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:gh[opsur]_|github_pat_|glpat-|hf_|sk-|AIza|eyJ|xox[a-z]-|npm_|pypi-)[\w.-]{8}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{12}|(?i:bearer|basic)\s+\S{8})|-----BEGIN|://[^/\s:@]+:[^/\s@]+@"
)


def read_block(block: object) -> tuple[dict[str, object] | None, bool]:
    """The known part of a decoded block.

    Args:
        block: the value of the key, of any type.

    Returns:
        `{"schema": 1, section: {key: scalar or list of scalars}}` with the sections that were there, None where the
        block is none of this schema; and whether everything had the type that the schema gives it.
    """
    if not isinstance(block, dict) or _number(block.get("schema")) != SCHEMA:
        return None, False
    found: dict[str, object] = {"schema": SCHEMA}
    sound = True
    for name in SECTIONS:
        facts = block.get(name)
        if isinstance(facts, dict):
            found[name] = _kept(facts)
        elif facts is not None:
            sound = False
    return found, sound


def section(block: Mapping[str, object] | None, name: str) -> Section:
    """One section of a block that was read; empty where it has none."""
    found = (block or {}).get(name)
    return found if isinstance(found, dict) else {}


def number(facts: Section, key: str) -> float | None:
    """A number of a section; None where it is not there, or none."""
    value = facts.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def word(facts: Section, key: str) -> str | None:
    """A text of a section; None where it is not there, empty, or none."""
    value = facts.get(key)
    return value if isinstance(value, str) and value else None


def quiet_ns(block: Mapping[str, object] | None) -> int | None:
    """From when on the recorder took no operations in this window, epoch nanoseconds; None: it took them to the end."""
    value = _number(section(block, "window").get("quiet_ns"))
    return value if value is not None and value > 0 else None


def is_collected(block: Mapping[str, object] | None) -> bool:
    """Whether the step labels of a trace are the collector's own, put around each step while it ran.

    A simulated trace, or one that somebody labelled by hand, has a block or labels, but no recorder.
    """
    return word(section(block, "window"), "recorder") is not None


def hides_host(block: Mapping[str, object] | None) -> bool:
    """Whether the host's name was replaced by its hash when the file was written: by its recorder, or by redaction."""
    return is_collected(block) or word(section(block, "redaction"), "level") in ("default", "strict")


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _kept(facts: Mapping[object, object]) -> dict[str, object]:
    kept: dict[str, object] = {}
    for key, value in facts.items():
        if len(kept) == _MOST_KEYS:
            break
        if not isinstance(key, str) or not _KEY.fullmatch(key) or _NEVER.match(key) or _CREDENTIAL.search(key):
            continue
        if isinstance(value, list):
            items = value[:_MOST_ITEMS]
            if all(_is_plain(key, item) for item in items):
                kept[key] = [_shortened(item) for item in items]
        elif _is_plain(key, value):
            kept[key] = _shortened(value)
    return kept


def _is_plain(key: str, value: object) -> bool:
    """Whether a value may be kept under this name: a scalar that JSON can hold and that gives nothing away."""
    if isinstance(value, str):
        return not _NO_TEXT.search(key) and not _CREDENTIAL.search(value)
    if isinstance(value, float):
        return isfinite(value)
    return value is None or (isinstance(value, int) and -(2**63) <= value < 2**63)


def _shortened(value: object) -> object:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else value

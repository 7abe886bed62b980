"""Labels: what a client says about a trace, checked before anything is stored.

What could be wrong: letters of different scripts that look alike pass; a label is shown, it names no file.
"""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass
from typing import Self

from traceanalyzer.errors import InputError
from traceanalyzer.report.text_safety import visible

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
_CHARS = 200
_LONGEST_WEIGHT_S = 1e10


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """What is known about a trace besides its bytes; None: not said."""

    name: str | None = None
    model: str | None = None
    engine: str | None = None
    host: str | None = None
    revision: str | None = None
    environment: str | None = None
    recording: str | None = None
    weight_s: float | None = None
    """For how many seconds of the run this sample stands."""
    pinned: bool | None = None

    @classmethod
    def checked(
        cls,
        *,
        name: str | None = None,
        model: str | None = None,
        engine: str | None = None,
        host: str | None = None,
        revision: str | None = None,
        environment: str | None = None,
        recording: str | None = None,
        weight_s: str | float | None = None,
        pinned: str | bool | None = None,
        chars: int = _CHARS,
    ) -> Self:
        """Labels as a stranger sends them: text is normalised (NFC) and trimmed, an empty label is none.

        Raises:
            InputError: a label holds a character that cannot be seen, is longer than `chars`, or is no such number;
                or the name is no base name.
        """
        return cls(
            name=_base_name(_text("name", name, chars)),
            model=_text("model", model, chars),
            engine=_text("engine", engine, chars),
            host=_text("host", host, chars),
            revision=_text("revision", revision, chars),
            environment=_text("environment", environment, chars),
            recording=_text("recording", recording, chars),
            weight_s=_seconds(weight_s),
            pinned=_flag(pinned),
        )


def _text(label: str, value: str | None, chars: int) -> str | None:
    if value is None:
        return None
    if len(value) > 4 * chars:  # not even normalised: normalising costs time, too
        raise InputError(f"the label {label} is longer than {chars} characters")
    text = unicodedata.normalize("NFC", value).strip()
    if visible(text) != text:
        raise InputError(f"the label {label} holds a character that cannot be seen")
    if len(text) > chars:
        raise InputError(f"the label {label} is longer than {chars} characters")
    return text or None


def _base_name(text: str | None) -> str | None:
    if text is not None and (text in (".", "..") or "/" in text or "\\" in text):
        raise InputError("the label name is a file's base name, not a path")
    return text


def _seconds(value: str | float | None) -> float | None:
    if value is None or value == "":
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _LONGEST_WEIGHT_S:
        raise InputError("the label weight_s is a number of seconds, 0 or more")
    return seconds


def _flag(value: str | bool | None) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    word = value.strip().casefold()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    if word:
        raise InputError("the label pinned is true or false")
    return None

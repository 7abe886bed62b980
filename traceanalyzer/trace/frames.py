"""The Python frames that are kept: those long enough to explain why a device waited, a bounded number of them.

Nine tenths of many files are frames, nearly all of them shorter than anything they could explain. They are told apart
by the text of their duration alone, so that what is left out costs no more than being counted. What could be wrong: a
frame that was entered before the recording began, or left after it ended, has no event.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec import Raw

from traceanalyzer.trace.events import FrameEvent, Loose
from traceanalyzer.trace.numbers import nanoseconds
from traceanalyzer.trace.salvage import DAMAGE

LEAST_NS = 100_000
"""Shorter frames are not kept."""
MOST = 500_000
"""No more frames than these are kept of one file: 12 MB of columns."""

_LEAST_DIGITS = 3
"""Digits before the point of a duration of at least `LEAST_NS` in microseconds."""
_LONGEST_NAME = 400
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_FILE = re.compile(r"\A(torch[\\/])?(?:.*[\\/])?([^\\/]*\(\d+\): .*)\Z", re.DOTALL)
"""`torch/nn/modules/module.py(1779): _call_impl`: file, line and function."""
_PATH = re.compile(r"\S*[\\/](?:.*[\\/])?", re.DOTALL)
_COMPLETE = b'"X"'
_LOOSE = msgspec.json.Decoder(Loose)


def long_ones(events: Sequence[FrameEvent]) -> list[FrameEvent]:
    """The complete frames that lasted at least `LEAST_NS`, in the same order."""
    texts = [bytes(event.dur) for event in events]
    likely = [row for row, text in enumerate(texts) if _may_be_long(text)]
    duration, known = nanoseconds([texts[row] for row in likely])
    keep = known & (duration >= LEAST_NS)
    found = [events[likely[place]] for place in np.flatnonzero(keep).tolist()]
    return [event for event in found if bytes(event.ph) == _COMPLETE]


def _may_be_long(text: bytes) -> bool:
    point = text.find(b".")
    return (point if point >= 0 else len(text)) >= _LEAST_DIGITS or not text[:1].isdigit() or b"e" in text.lower()


def name(event: FrameEvent) -> str:
    """The frame's name: of its file the base name only, for folders name people, after `torch/` if it is PyTorch's.

    Addresses, which make every object's method a name of its own, are left out.
    """
    try:
        text = msgspec.json.decode(event.name, type=str)[:_LONGEST_NAME]
    except DAMAGE:
        return ""
    if (found := _FILE.match(text)) is not None:
        return f"{'torch/' if found[1] else ''}{found[2]}"
    return _PATH.sub("", _ADDRESS.sub("", text))


def loose(raw: Raw) -> Loose:
    """A process or thread id as written; None for what is neither number nor text."""
    try:
        return _LOOSE.decode(raw)
    except DAMAGE:
        return None

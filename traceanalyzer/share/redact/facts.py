"""Reads from a trace what its recorder says of it, for the labels of an upload.

The recorder's block stands before the events, or after them in a redacted file, and then the whole file is read. What
could be wrong: these are the recorder's words, taken as they stand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from traceanalyzer.share.redact.metadata import BLOCK
from traceanalyzer.trace.blocks import EventBlocks
from traceanalyzer.trace.collector import hides_host, number, read_block, section, word
from traceanalyzer.trace.metadata import host_hash, top_level
from traceanalyzer.trace.notes import NoteBook
from traceanalyzer.trace.salvage import repair
from traceanalyzer.trace.source import SourceStream

_HOST = "host_name"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a trace; None where it is not. `host` is a hash, `weight_s` the seconds the window stands for.

    `level` is how far the file says it was redacted already.
    """

    model: str | None = None
    engine: str | None = None
    host: str | None = None
    weight_s: float | None = None
    recording: str | None = None
    rank: int | None = None
    level: str | None = None


def facts(path: Path) -> Facts:
    """The facts of one file.

    Raises:
        InputError, UnsupportedTraceError: it cannot be opened as a trace.
    """
    book = NoteBook()
    stream = SourceStream(path, book)
    try:
        blocks = EventBlocks(stream, book, typed=False)
        for _ in blocks:
            values, _ = top_level(blocks.header)
            if BLOCK in values:
                return _facts(values)
        values, _ = top_level(blocks.header)
        return _facts(values | top_level(blocks.footer, depth=1)[0])
    finally:
        stream.close()


def _facts(values: Mapping[str, bytes]) -> Facts:
    block, _ = read_block(_read(values.get(BLOCK)))
    window = section(block, "window")
    rank, weight = number(window, "rank"), number(section(block, "sampling"), "weight_s")
    model = section(block, "model")
    host = _read(values.get(_HOST))
    return Facts(
        model=word(model, "name") or word(model, "architecture"),
        engine=word(window, "engine"),
        host=host_hash(host, hides_host(block)) if isinstance(host, str) else None,
        weight_s=weight,
        recording=word(window, "recording"),
        rank=None if rank is None else round(rank),
        level=word(section(block, "redaction"), "level"),
    )


def _read(raw: bytes | None) -> object:
    try:
        value: object = json.loads(repair(raw)[0]) if raw is not None else None
    except (ValueError, RecursionError):
        return None
    return value

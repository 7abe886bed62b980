"""Reads one Kineto trace (the Chrome JSON that torch.profiler exports) from its first byte to a `Trace`.

Streaming: the text passes through once in blocks, events become columns at once, and short Python frames and flow
arrows, nine tenths of many files, are counted but never decoded. What could be wrong: see `blocks` (where the event
list begins), `finish` (which rows cannot be true) and `events` (spellings of keys).
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from traceanalyzer.trace import notes
from traceanalyzer.trace.blocks import BLOCK_BYTES, EventBlocks
from traceanalyzer.trace.closing import until_quiet
from traceanalyzer.trace.codes import ThreadKey
from traceanalyzer.trace.columns import Columns
from traceanalyzer.trace.events import CATEGORIES
from traceanalyzer.trace.finish import finish
from traceanalyzer.trace.metadata import read_metadata, top_level
from traceanalyzer.trace.refuse import foreign_events, unsupported_accelerators, without_events
from traceanalyzer.trace.source import SourceStream
from traceanalyzer.trace.tables import Source, Trace


def read_kineto(path: str | Path, block_bytes: int = BLOCK_BYTES) -> Trace:
    """Read one trace.

    Args:
        path: the file (JSON, or JSON compressed with gzip or zstd), or "-" for standard input.
        block_bytes: how much text is decoded at once; any value gives the same trace.

    Raises:
        InputError: the file is missing, unreadable, empty, a folder or an archive.
        UnsupportedTraceError: it is no PyTorch trace, or one of an accelerator that is not supported.
        CorruptTraceError: it ends before its first event.
    """
    book = notes.NoteBook()
    source = SourceStream(path, book)
    try:
        columns = Columns(book)
        blocks = EventBlocks(source, book, block_bytes)
        with _no_collection():
            for events in blocks:
                columns.add(events)
        digest = source.finish()
    finally:
        source.close()
    values, keys = top_level(blocks.header)
    if not blocks.found:
        raise without_events(source.name, keys, complete=blocks.whole)
    tail_values, tail_keys = top_level(blocks.footer, depth=1)
    if "traceEvents" in tail_keys:
        book.add(notes.DAMAGED_METADATA, detail="traceEvents")
    values |= tail_values
    _refuse_foreign(source.name, columns, keys | tail_keys)
    finished = finish(columns, book)
    tables = finished.tables
    first = min((int(table["start_ns"].min()) for table in tables.values() if len(table)), default=None)
    metadata = read_metadata(values, first, book)
    tables = until_quiet(tables, metadata, book)
    return Trace(
        source=Source(source.name, digest, source.format, source.bytes, columns.events),
        strings=finished.strings,
        threads=tuple(_label(key, columns.thread_names.get(key, "")) for key in finished.threads),
        metadata=metadata,
        quality=book.notes(),
        kernels=tables["kernels"],
        launches=tables["launches"],
        ops=tables["ops"],
        annotations=tables["annotations"],
        syncs=tables["syncs"],
        counters=tables["counters"],
        frames=tables["frames"],
    )


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without garbage collection: events form no cycles, and collecting while millions come and go costs a third."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _refuse_foreign(name: str, columns: Columns, keys: Iterable[str]) -> None:
    """Raise for events that PyTorch did not write, and for accelerators without kernels."""
    unknown = {
        category: count
        for category, count in columns.categories.items()
        if category is not None and category not in CATEGORIES
    }
    if unsupported_accelerators(unknown) and not columns.tables["kernels"].rows:
        raise foreign_events(name, unknown)
    known = any(category in CATEGORIES for category in columns.categories)
    if not known and not {"schemaVersion", "deviceProperties"} & set(keys):
        raise foreign_events(name, unknown)


def _label(key: ThreadKey, name: str) -> str:
    return f"{key[0]}/{key[1]} {name}".rstrip()

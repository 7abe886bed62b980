"""Rewrites a trace as a stream, in memory for a few blocks of it, and says in the file what was done.

The file is read twice: for the names in it (`known`), and to rewrite it. What comes out is whole JSON in gzip, the same
bytes for the same input: top-level keys, the events in their order, and the file's own block at its end. What was
damaged is left out as a reader leaves it out, and noted in the block, so that a report says it of the redacted file
too. What could be wrong: a file that changes between the two readings is redacted without the names it gained.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from isal import isal_zlib

from traceanalyzer.errors import CorruptTraceError, InputError
from traceanalyzer.share.redact.events import EventRewriter
from traceanalyzer.share.redact.known import learn
from traceanalyzer.share.redact.levels import LEVELS, Level, Redaction, Tally
from traceanalyzer.share.redact.metadata import BLOCK, REDACTION, MetadataRewriter, account, is_kept
from traceanalyzer.share.redact.places import Places
from traceanalyzer.share.redact.shapes import Shapes
from traceanalyzer.share.redact.written import joined, member
from traceanalyzer.trace.blocks import EventBlocks
from traceanalyzer.trace.collector import SCHEMA, hides_host
from traceanalyzer.trace.metadata import top_level
from traceanalyzer.trace.notes import DAMAGED_METADATA, NoteBook
from traceanalyzer.trace.refuse import printable, without_events
from traceanalyzer.trace.salvage import DAMAGE
from traceanalyzer.trace.source import SourceStream

_GZIP = 31
"""`wbits` of a gzip stream; its head holds neither a name nor a time."""
_GZIP_LEVEL = 3
_EVENTS = "traceEvents"
_SCHEMA = "schema"


def redact_file(source: Path, target: Path, level: Level = "default") -> Redaction:
    """Write a redacted copy of a trace.

    Args:
        source: the trace: JSON, or JSON compressed with gzip or zstd.
        target: where the copy goes, compressed with gzip; overwritten. It is not there after an error.
        level: how much is taken out.

    Raises:
        InputError: the source cannot be read, or the target not written.
        UnsupportedTraceError: it is no trace.
        CorruptTraceError: it is damaged beyond what can be examined.
    """
    rewriting = _Rewriting(source, level)
    if target.exists() and target.samefile(source):
        raise InputError(f"{printable(target.name)} cannot be redacted into itself", "name another file")
    try:
        with target.open("wb") as out:
            try:
                packer = isal_zlib.compressobj(_GZIP_LEVEL, isal_zlib.DEFLATED, _GZIP)
                for piece in rewriting.pieces():
                    out.write(packer.compress(piece))
                out.write(packer.flush())
            except BaseException:
                target.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise InputError(f"{printable(target.name)} cannot be written: {error.strerror or 'I/O error'}") from error
    return rewriting.done()


def preview(source: Path, level: Level = "default") -> Redaction:
    """What `redact_file` would do, with examples; nothing is written.

    Raises:
        TraceAnalyzerError: as `redact_file`.
    """
    rewriting = _Rewriting(source, level)
    for _ in rewriting.pieces():
        pass
    return rewriting.done()


class _Rewriting:
    """One file on its way."""

    def __init__(self, source: Path, level: Level) -> None:
        if level not in LEVELS:
            raise InputError(f"{level} is no level of redaction", f"one of {', '.join(LEVELS)}")
        self._source, self._level = source, level
        self._tally, self._book = Tally(), NoteBook()
        places = Places(Shapes(learn(source)), level)
        self._events = EventRewriter(places, self._tally)
        self._metadata = MetadataRewriter(places, level, self._events.value, self._tally, self._book)

    def done(self) -> Redaction:
        return self._tally.result(self._level)

    def pieces(self) -> Iterator[bytes]:
        """The text of the redacted file."""
        stream = SourceStream(self._source, self._book)
        try:
            yield from self._pieces(stream)
        except DAMAGE as error:
            raise CorruptTraceError(f"{stream.name} cannot be redacted: it holds what is no JSON") from error
        finally:
            stream.close()

    def _pieces(self, stream: SourceStream) -> Iterator[bytes]:
        blocks = EventBlocks(stream, self._book, typed=False)
        yield b'{"traceEvents": [\n'
        separator = b""
        for events in blocks:
            yield separator
            yield self._events.rewrite(events) if self._level != "none" else b",\n".join(events.raws)
            separator = b",\n"
        wanted = is_kept if self._level != "none" else lambda _: True
        head, head_keys = top_level(blocks.header, wanted=wanted)
        if not blocks.found:
            raise without_events(stream.name, head_keys, complete=blocks.whole)
        tail, tail_keys = top_level(blocks.footer, depth=1, wanted=wanted)
        if _EVENTS in tail_keys:
            self._book.add(DAMAGED_METADATA, detail=_EVENTS)
        yield self._closing(head | tail, head_keys | tail_keys)

    def _closing(self, values: dict[str, bytes], keys: set[str]) -> bytes:
        """What follows the events. Keys that stood before them stand here too: whether a host's name is its hash
        already, for one, is only known at the end."""
        values.pop(_EVENTS, None)
        sections, block = self._metadata.block(values.get(BLOCK))
        fields = self._metadata.fields(values, keys, hides_host(block))
        own = joined([(_SCHEMA, b"%d" % SCHEMA), *sections, (REDACTION, account(self.done(), block, self._book))])
        return b"\n],\n" + b",\n".join(member(key, value) for key, value in [*fields, (BLOCK, own)]) + b"}\n"

"""Opens a trace and streams its UTF-8 text: decompressed, transcoded, hashed, in chunks of bounded size.

Compression and encoding are sniffed from the first bytes, because file names lie. A damaged or cut gzip or zstd stream
yields everything that came out before the damage, and a note. What could be wrong: see `unpack`.
"""

from __future__ import annotations

import codecs
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from traceanalyzer.errors import InputError
from traceanalyzer.trace import notes
from traceanalyzer.trace.refuse import printable, refuse_binary
from traceanalyzer.trace.unpack import GZIP, ZSTD, Unpacker, magic_of

_PLAIN_CHUNK = 1 << 20
_PACKED_CHUNK = 1 << 14
_SNIFF = 512
_FORMATS = {b"": "kineto-json", GZIP: "kineto-json.gz", ZSTD: "kineto-json.zst"}
_JSON_STARTS = (b"{", b"[", b" ", b"\t", b"\r", b"\n")
_BOMS: tuple[tuple[bytes, str], ...] = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class SourceStream:
    """The text of one file as an iterator of UTF-8 chunks; afterwards its size and hash.

    Args:
        path: the file, or "-" for standard input.
        book: where damage is noted.

    Raises:
        InputError: missing, unreadable, empty or a folder, or an archive.
        UnsupportedTraceError: another format, recognised by its first bytes.
    """

    def __init__(self, path: str | Path, book: notes.NoteBook) -> None:
        """Open the file and look at its first bytes."""
        self.name = "stdin" if str(path) == "-" else printable(Path(path).name)
        self.bytes = 0
        self._book = book
        self._hash = hashlib.sha256()
        self._is_stdin = str(path) == "-"
        self._handle = _open(path, self.name)
        try:
            self._first = self._read(_SNIFF)
            if not self._first:
                raise InputError(f"{self.name} is empty", "the recording was not written; record it again")
            magic = magic_of(self._first)
            self.format = _FORMATS[magic]
            self._chunks = self._text(magic)
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[bytes]:
        """The text, once."""
        return self._chunks

    def finish(self) -> str:
        """Read what is left of the file, so that the hash covers all of it, close it and return the hash in hex."""
        while self._read(_PLAIN_CHUNK):
            pass
        self.close()
        return self._hash.hexdigest()

    def close(self) -> None:
        """Close the file; standard input stays open."""
        if not self._is_stdin:
            self._handle.close()

    def _read(self, size: int) -> bytes:
        try:
            data = self._handle.read(size)
        except OSError as error:
            raise InputError(f"{self.name} cannot be read: {error.strerror or 'I/O error'}") from error
        self._hash.update(data)
        self.bytes += len(data)
        return data

    def _raw(self, size: int) -> Iterator[bytes]:
        yield self._first
        while data := self._read(size):
            yield data

    def _text(self, magic: bytes) -> Iterator[bytes]:
        chunks = _unpacked(self._raw(_PACKED_CHUNK), magic, self._book) if magic else self._raw(_PLAIN_CHUNK)
        head = b""
        for chunk in chunks:
            head += chunk
            if len(head) >= _SNIFF:
                break
        encoding, skip = _encoding(head)
        if encoding == "utf-8":
            refuse_binary(self.name, head[skip:])
            return _prepend(head[skip:], chunks)
        return _transcoded(_prepend(head[skip:], chunks), encoding, self._book)


def _open(path: str | Path, name: str) -> BinaryIO:
    if str(path) == "-":
        if sys.stdin is None:
            raise InputError("standard input is closed", "pass the name of a trace file")
        return sys.stdin.buffer
    try:
        return Path(path).open("rb")
    except FileNotFoundError as error:
        raise InputError(f"{name} does not exist", "check the path") from error
    except PermissionError as error:
        raise InputError(f"{name} cannot be read: permission denied", "check its permissions") from error
    except IsADirectoryError as error:
        raise InputError(f"{name} is a folder", "pass the trace files in it") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{name} cannot be opened: {reason}", "check the path") from error


def _prepend(head: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    if head:
        yield head
    yield from chunks


def _unpacked(chunks: Iterator[bytes], magic: bytes, book: notes.NoteBook) -> Iterator[bytes]:
    """The text as far as it is whole, and a note where it is not."""
    unpacker = Unpacker(magic)
    for chunk in chunks:
        yield from unpacker.feed(chunk)
        if unpacker.damaged:
            book.add(notes.DAMAGED_COMPRESSION)
            return
    if unpacker.is_cut:
        book.add(notes.TRUNCATED_COMPRESSION)


def _encoding(head: bytes) -> tuple[str, int]:
    """The encoding of the text and the length of its UTF-8 byte order mark."""
    for bom, encoding in _BOMS:
        if head.startswith(bom):
            return encoding, len(bom) if encoding == "utf-8" else 0
    if head[:1] in _JSON_STARTS and head[1:2] == b"\0":
        return ("utf-32-le" if head[1:4] == b"\0\0\0" else "utf-16-le"), 0
    if head[:1] == b"\0" and head[1:2] in _JSON_STARTS:
        return "utf-16-be", 0
    return "utf-8", 0


def _transcoded(chunks: Iterator[bytes], encoding: str, book: notes.NoteBook) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    for chunk in chunks:
        text = decoder.decode(chunk)
        book.add(notes.INVALID_UTF8, text.count("\ufffd"))
        yield text.encode("utf-8", "replace")
    text = decoder.decode(b"", final=True)
    book.add(notes.INVALID_UTF8, text.count("\ufffd"))
    yield text.encode("utf-8", "replace")

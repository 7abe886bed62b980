"""Turns a raw trace into the file that is kept: the recorder's block in front, compressed, whole or not there.

The raw file is read twice, and neither pass holds more of it than a few pieces. The first checks it (`scan`). The
second, here, copies the events as they are, but for absolute paths, of which the last part stays; what is written is
read back before it gets its name. Of the other top-level keys only those pass that say how and on what the trace was
made: Kineto also writes the host's name and where the file lay, and whatever the script added. What could be wrong: a
path in the middle of an event's text stays.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import zlib
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO, Iterator, NamedTuple

from .scan import CHUNK, Damaged, Scan

BLOCK = "traceanalyzer"
_LEVEL = 1
"""gzip's fastest: a trace shrinks fifteenfold all the same."""
_GZIP = 31
"""`wbits` of a gzip stream without a name or a time in its head."""

_FLAGS = ("record_shapes", "with_stack", "with_flops", "with_modules", "profile_memory")
_NUMBERS = ("schemaVersion", "baseTimeNanoseconds", *_FLAGS)
_WORDS = ("displayTimeUnit", "trace_id")
_LISTS = ("deviceProperties", "computeProperties")
_MESSAGES = ("WARNING", "ERROR")
_DISTRIBUTED = ("backend", "rank", "world_size", "pg_count", "pg_config", "nccl_version")
_VERSION = re.compile(r"\w{1,40}_version\Z")
_WORD = re.compile(r"[0-9A-Za-z.+_-]{1,64}\Z")
_MOST_MESSAGES = 64
_LONGEST_MESSAGE = 500
_MOST_ITEMS = 4096
_DEEPEST = 4

_PATH = re.compile(r"(?<![\w.])(?:/[^\s/'\":,;()]+){2,}")
_PATH_VALUE = re.compile(rb'(?<!\\)"\\?/(?:(?:[^"\\/(]|\\[^/])+\\?/)*(?=[^"/\s])')
"""A quote that opens a string with an absolute path, up to the path's last part."""
_PATH_SIGN = re.compile(rb'"\\?/')
_LONGEST_TAIL = 1 << 16


class Finished(NamedTuple):
    """A file that is complete on disk: its size, and the SHA-256 of its bytes as hexadecimal digits."""

    bytes: int
    sha256: str


def finish(stream: BinaryIO, found: Scan, target: Path, block: dict[str, Any]) -> Finished:
    """Publish a raw trace that `scan` found whole as `target`, a name that did not exist before.

    Args:
        stream: the raw trace; it is left as it is.
        found: what `scan` said of it.
        target: the finished file; next to it `target.tmp` exists while it is written.
        block: the recorder's block.

    Raises:
        Damaged: the raw trace has changed. Nothing was published.
        OSError: it could not be read or written, on a full disk for instance. Nothing was published.
    """
    temporary = target.with_name(target.name + ".tmp")
    with temporary.open("xb") as out:
        try:
            size, digest = _write(stream, out, found, block)
            out.flush()
            os.fsync(out.fileno())
            _check(temporary, digest)
            temporary.rename(target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    _sync_folder(target.parent)
    return Finished(size, digest)


def header(found: Scan, block: dict[str, Any]) -> dict[str, Any]:
    """The top-level keys of the finished file, without its events."""
    kept: dict[str, Any] = {BLOCK: block}
    for key, value in found.header.items():
        if key in _NUMBERS:
            if _is_number(value):
                kept[key] = value
        elif key in _WORDS or _VERSION.match(key):
            if _is_number(value) or (isinstance(value, str) and _WORD.match(value)):
                kept[key] = value
        elif key in _LISTS:
            if isinstance(value, list):
                kept[key] = _clean(value)
        elif key in _MESSAGES and isinstance(value, list):
            kept[key] = [_clean(text)[:_LONGEST_MESSAGE] for text in value[:_MOST_MESSAGES] if isinstance(text, str)]
    host = found.header.get("host_name")
    if isinstance(host, str):
        kept["host_name"] = host_hash(host)
    distributed = _distributed(found.header.get("distributedInfo"), block.get("window"))
    if distributed:
        kept["distributedInfo"] = distributed
    return kept


def _is_number(value: Any) -> bool:
    """Whether it is a number that JSON has."""
    return isinstance(value, int) or (isinstance(value, float) and isfinite(value))


def host_hash(name: str) -> str:
    """Tells hosts apart without naming them: twelve hexadecimal digits."""
    return hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:12]


def _distributed(recorded: Any, window: Any) -> dict[str, Any]:
    """What torch says of its process group; where that is nothing (an on-demand trace), what the recorder knows."""
    found = recorded if isinstance(recorded, dict) else {}
    kept = {key: _clean(found[key]) for key in _DISTRIBUTED if key in found}
    for key in ("rank", "world_size"):
        if isinstance(window, dict) and window.get(key) is not None:
            kept.setdefault(key, window[key])
    return kept


def _clean(value: Any, depth: int = 0) -> Any:
    """A value that JSON has, without paths in its texts, of bounded depth and length."""
    if isinstance(value, str):
        return _PATH.sub("[path]", value.encode("utf-8", "replace").decode("utf-8"))
    if isinstance(value, list) and depth < _DEEPEST:
        return [_clean(item, depth + 1) for item in value[:_MOST_ITEMS]]
    if isinstance(value, dict) and depth < _DEEPEST:
        return {_clean(key): _clean(item, depth + 1) for key, item in list(value.items())[:_MOST_ITEMS]}
    return value if _is_number(value) else None


def _write(stream: BinaryIO, out: BinaryIO, found: Scan, block: dict[str, Any]) -> tuple[int, str]:
    """Compress the whole file; its size and digest."""
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    digest = hashlib.sha256()
    size = 0
    for piece in _pieces(stream, found, block):
        data = compressor.compress(piece) if piece is not None else compressor.flush()
        digest.update(data)
        size += len(data)
        out.write(data)
    return size, digest.hexdigest()


def _check(path: Path, digest: str) -> None:
    """Read back what was written. Raises `OSError` where it is not that: the disk cannot be trusted."""
    found = hashlib.sha256()
    with path.open("rb") as stream:
        for piece in iter(lambda: stream.read(CHUNK), b""):
            found.update(piece)
    if found.hexdigest() != digest:
        raise OSError(errno.EIO, "what was written reads back differently", str(path))


def _pieces(stream: BinaryIO, found: Scan, block: dict[str, Any]) -> Iterator[bytes | None]:
    """The text of the finished file, then None."""
    head = header(found, block)
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in head.items())
    yield f'{{\n{lines},\n"traceEvents": ['.encode()
    stream.seek(found.begin)
    left = found.end - found.begin
    kept = b""
    while left:
        chunk = stream.read(min(CHUNK, left))
        if not chunk:
            raise Damaged("shorter than it was")
        left -= len(chunk)
        kept += chunk
        # A string that may go on is looked at as a whole.
        cut = _last_quote(kept) if left else len(kept)
        if cut < 0 or len(kept) - cut > _LONGEST_TAIL:
            cut = len(kept)
        yield _PATH_VALUE.sub(b'"', kept[:cut]) if _PATH_SIGN.search(kept) else kept[:cut]
        kept = kept[cut:]
    yield b"]\n}\n"
    yield None


def _last_quote(text: bytes) -> int:
    """Where the last quote stands that is not escaped; -1 without one."""
    at = text.rfind(b'"')
    while at > 0 and text[at - 1 : at] == b"\\":
        at = text.rfind(b'"', 0, at)
    return at


def _sync_folder(folder: Path) -> None:
    """Make a rename in it last, where the file system can be told so."""
    fd = os.open(str(folder), os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError:
        return
    finally:
        os.close(fd)

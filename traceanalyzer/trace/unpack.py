"""Unpacks gzip and zstd as the bytes arrive: member by member, in pieces of bounded size.

Shared by the reader, which pulls from a file, and by a server, which is handed a body. What could be wrong: the bytes
after a damaged spot are lost even where a later gzip member would be whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, cast

import zstandard
from isal import igzip_lib, isal_zlib

GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"

_PIECE = 1 << 20
_STEPS = {GZIP: 1 << 12, ZSTD: 1 << 8}
"""How much compressed text is expanded at once: gzip makes at most 1032 bytes of one, zstd 128 KiB of four."""
_DAMAGE = (cast("type[Exception]", igzip_lib.IsalError), zstandard.ZstdError)  # its stub declares an instance


class _Decompressor(Protocol):
    """What zlib-like decompression objects share."""

    @property
    def eof(self) -> bool:
        """Whether the end of the member or frame was met."""

    @property
    def unused_data(self) -> bytes:
        """What follows that end."""

    def decompress(self, data: bytes, /) -> bytes:
        """The text that came out of `data`."""


def magic_of(head: bytes) -> bytes:
    """`GZIP` or `ZSTD` where `head` begins with it, else nothing."""
    return next((magic for magic in _STEPS if head.startswith(magic)), b"")


class Unpacker:
    """All members or frames, one after the other, as far as they are whole.

    Args:
        magic: `GZIP` or `ZSTD`.
        max_window: the largest window of a zstd frame, in bytes, that is given memory; a frame that wants more counts
            as damaged. 0: what the library allows, 128 MiB.
    """

    def __init__(self, magic: bytes, max_window: int = 0) -> None:
        """Start before the first member."""
        self.damaged = False
        self.members = 0
        self._magic = magic
        self._max_window = max_window
        self._member: _Decompressor | None = None

    @property
    def is_cut(self) -> bool:
        """Whether the end of a member has not been met yet."""
        return self._member is not None and not self.damaged

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The text that comes out of the next bytes, at most 1 MiB at a time; nothing after damage."""
        step = _STEPS[self._magic]
        for begin in range(0, len(data), step):
            yield from self._step(data[begin : begin + step])

    def _step(self, data: bytes) -> Iterator[bytes]:
        while data and not self.damaged:
            if self._member is None:
                data = data.lstrip(b"\0")  # tape and block devices pad with zeros, which is no damage
                if not data:
                    return
                self._member = self._new()
                self.members += 1
            member = self._member
            try:
                text = member.decompress(data)
            except _DAMAGE:
                self.damaged = True
                return
            for begin in range(0, len(text), _PIECE):
                yield text[begin : begin + _PIECE]
            if not member.eof:
                return
            data = member.unused_data
            self._member = None

    def _new(self) -> _Decompressor:
        if self._magic == GZIP:
            return isal_zlib.decompressobj(31)
        return zstandard.ZstdDecompressor(max_window_size=self._max_window).decompressobj()

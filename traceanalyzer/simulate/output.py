"""Files that are written whole or not at all: beside their place first, renamed when complete.

The suffix says how a trace is packed: .json plain, .json.gz gzip, .json.zst zstandard. The same text gives the same
bytes: no date and no name goes into the container.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, cast

import zstandard
from isal import igzip

from traceanalyzer.errors import InputError

SUFFIXES = (".json", ".json.gz", ".json.zst")


def split(path: Path) -> tuple[str, str]:
    """The name without the suffix, and the suffix.

    Raises:
        InputError: the suffix is none of `SUFFIXES`.
    """
    for suffix in SUFFIXES:
        if path.name.endswith(suffix) and path.name != suffix:
            return path.name[: -len(suffix)], suffix
    hint = "the suffix says how to pack the trace"
    raise InputError(f"{path.name[:80]!r} does not end in {', '.join(SUFFIXES)}", hint)


def trace_paths(path: Path, ranks: int) -> list[Path]:
    """One path per rank: NAME.json, or NAME-rank0.json, NAME-rank1.json, ..."""
    name, suffix = split(path)
    if ranks == 1:
        return [path]
    return [path.with_name(f"{name}-rank{rank}{suffix}") for rank in range(ranks)]


def truth_path(trace: Path) -> Path:
    """Where the truth of a trace stands: NAME.truth.json."""
    return trace.with_name(f"{split(trace)[0]}.truth.json")


class Output:
    """One file being written. `size` counts what was written before packing.

    Raises:
        InputError: the system refuses; the message names the file.
    """

    def __init__(self, path: Path) -> None:
        """Open a temporary file beside `path`."""
        self.path = path
        self.size = 0
        self._beside = path.with_name(f".{path.name[:200]}.{os.getpid()}")
        try:
            self._raw: IO[bytes] = self._beside.open("xb")
        except OSError as error:
            raise _refused(path, error) from error
        self._file = _packer(self._raw, path.name)

    def write(self, text: str) -> None:
        """Write text as UTF-8."""
        data = text.encode()
        self.size += len(data)
        try:
            self._file.write(data)
        except OSError as error:
            raise _refused(self.path, error) from error

    def commit(self) -> None:
        """Finish the file and put it in its place."""
        try:
            if self._file is not self._raw:
                self._file.close()
            self._raw.close()
            self._beside.replace(self.path)
        except OSError as error:
            raise _refused(self.path, error) from error

    def __enter__(self) -> Output:
        """The file is open since it was made."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave nothing behind that was not committed."""
        with suppress(OSError, ValueError):  # what the packer still holds goes nowhere
            self._file.close()
        self._raw.close()
        self._beside.unlink(missing_ok=True)


def _packer(raw: IO[bytes], name: str) -> IO[bytes]:
    if name.endswith(".gz"):
        return cast(IO[bytes], igzip.IGzipFile("", "wb", 1, raw, 0))  # type: ignore[no-untyped-call]
    if name.endswith(".zst"):
        return zstandard.ZstdCompressor(level=3).stream_writer(raw, closefd=False)
    return raw


def _refused(path: Path, error: OSError) -> InputError:
    reason = "no space left" if error.errno == errno.ENOSPC else error.strerror or str(error)
    return InputError(f"cannot write {path.name}: {reason}")

"""The blobs: traces as they were sent, and their reports. A key is made of a SHA-256 and a fixed word, never of a name.

In a local folder a blob appears whole or not at all: it is synced to the disk first, then linked into place, then its
folder is synced. In an object store `put` is atomic by itself.

What could be wrong: linking needs the source on the same file system; elsewhere the bytes are copied, which takes
longer. The source must not be written to after it was put.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, from_url

from traceanalyzer.errors import InputError
from traceanalyzer.server.folder import sync_folder
from traceanalyzer.server.settings import Settings

REPORTS = ("page.html", "report.json", "report.md")
_CHUNK = 1 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")
_KEY = re.compile(
    r"traces/([0-9a-f]{2})/\1[0-9a-f]{62}|reports/([0-9a-f]{2})/\2[0-9a-f]{62}/(?:page\.html|report\.json|report\.md)"
)
_STAGING = ".staging"
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EACCES)


def key_of_trace(sha256: str) -> str:
    """Where a trace's bytes are.

    Raises:
        InputError: this is no SHA-256 in lower-case hexadecimal.
    """
    return f"traces/{_checked(sha256)[:2]}/{sha256}"


def key_of_report(sha256: str, kind: str) -> str:
    """Where one rendering of a trace's report is.

    Raises:
        InputError: no SHA-256, or `kind` is none of `REPORTS`.
    """
    if kind not in REPORTS:
        raise InputError("no such kind of report")
    return f"reports/{_checked(sha256)[:2]}/{sha256}/{kind}"


class Blobs:
    """The blobs of one server."""

    def __init__(self, settings: Settings) -> None:
        """Make the folder if the blobs are in one, for its owner only."""
        self._folder = settings.blobs
        # Between making a folder and putting something in it, nobody may take it away for being empty.
        self._folders = threading.Lock()
        if self._folder is None:
            self._store = from_url(str(settings.blob_url))
        else:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            (self._folder / _STAGING).mkdir(exist_ok=True, mode=0o700)
            self._store = LocalStore(self._folder)

    def tidy(self) -> None:
        """At start, by the one process that holds the folder: drop what a killed process left half done."""
        if self._folder is not None:
            for left in (self._folder / _STAGING).iterdir():
                left.unlink(missing_ok=True)

    def put_file(self, key: str, path: Path) -> None:
        """Store a regular file under a key, whole and durable; what was there is replaced. The file stays.

        Raises:
            InputError: the path is no regular file (a link is none), or the key is none of ours.
            OSError: the disk is full or refuses.
        """
        _check_key(key)
        source = _open_regular(path)
        try:
            if self._folder is None:
                with os.fdopen(os.dup(source), "rb") as file, _as_os_errors():
                    obstore.put(self._store, key, file)
            else:
                os.fsync(source)
                self._place(self._folder, source, path, self._folder / key)
        finally:
            os.close(source)

    def open(self, key: str) -> Iterator[bytes]:
        """The bytes under a key, in pieces of about 1 MiB.

        Raises:
            FileNotFoundError: there is nothing; raised by this call, not by the first piece.
        """
        _check_key(key)
        with _as_os_errors():
            return _pieces(obstore.get(self._store, key))

    def size(self, key: str) -> int | None:
        """How many bytes are under a key; None: there is nothing."""
        _check_key(key)
        try:
            with _as_os_errors():
                return int(obstore.head(self._store, key)["size"])
        except FileNotFoundError:
            return None

    def delete(self, key: str) -> None:
        """Remove what is under a key, if anything."""
        _check_key(key)
        with suppress(FileNotFoundError), _as_os_errors():
            obstore.delete(self._store, key)
        if self._folder is not None:
            with self._folders, suppress(OSError):  # others are in it still, or it never was
                (self._folder / key).parent.rmdir()

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Every key that starts with `traces/`, `reports/` or a longer part that ends in a slash."""
        with _as_os_errors():
            for batch in obstore.list(self._store, prefix or None):
                yield from (entry["path"] for entry in batch if _KEY.fullmatch(entry["path"]))

    def _place(self, folder: Path, source: int, path: Path, target: Path) -> None:
        staged = folder / _STAGING / secrets.token_hex(16)
        try:
            if not _linked(source, path, staged):
                _copy(source, staged)
            staged.chmod(0o600)
            with self._folders:
                _make_folders(folder, target.parent)
                staged.replace(target)
            with suppress(FileNotFoundError):  # deleted again already
                sync_folder(target.parent)
        finally:
            staged.unlink(missing_ok=True)  # also where both names were one file: then replacing does nothing


def _pieces(result: obstore.GetResult) -> Iterator[bytes]:
    with _as_os_errors():
        for piece in result.stream(min_chunk_size=_CHUNK):
            yield bytes(piece)


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """What a store says is wrong, as the `OSError` that everybody expects of a disk: obstore's errors are none."""
    try:
        yield
    except BaseError as error:
        raise OSError(errno.EIO, " ".join(str(error).split())[:300]) from error


def _checked(sha256: str) -> str:
    if not _SHA256.fullmatch(sha256):
        raise InputError("a trace is named by its SHA-256: 64 lower-case hexadecimal digits")
    return sha256


def _check_key(key: str) -> None:
    if not _KEY.fullmatch(key):
        raise InputError("no such blob")


def _open_regular(path: Path) -> int:
    try:
        source = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InputError("only a regular file can be stored") from error
        raise
    if not stat.S_ISREG(os.fstat(source).st_mode):
        os.close(source)
        raise InputError("only a regular file can be stored")
    return source


def _linked(source: int, path: Path, staged: Path) -> bool:
    """A second name for the same file; False where the file system has none, or the path has become another file."""
    try:
        os.link(path, staged, follow_symlinks=False)
    except OSError as error:
        if error.errno in _NO_LINK:
            return False
        raise
    if os.path.samestat(os.fstat(source), staged.lstat()):
        return True
    staged.unlink()
    return False


def _copy(source: int, staged: Path) -> None:
    with os.fdopen(os.dup(source), "rb") as file, staged.open("xb") as copy:
        file.seek(0)
        shutil.copyfileobj(file, copy, _CHUNK)
        copy.flush()
        os.fsync(copy.fileno())


def _make_folders(root: Path, folder: Path) -> None:
    """Make what is missing below `root`, and sync each parent: a folder that a power cut takes back takes all in it."""
    if folder == root or folder.is_dir():
        return
    _make_folders(root, folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    sync_folder(folder.parent)

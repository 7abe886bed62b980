"""The server's folder: it belongs to one process at a time, by a lock that the kernel drops when its holder ends.

What could be wrong: on some network file systems such locks hold within one machine only.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from traceanalyzer.errors import InputError

LOCK = "lock"
_IN_USE = (errno.EAGAIN, errno.EACCES)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Make `folder` where it does not exist (for its owner only) and hold it until the end of the block.

    Raises:
        InputError: another process holds it, or it cannot be written to.
    """
    held = _locked(folder)
    try:
        yield
    finally:
        os.close(held)


def _locked(folder: Path) -> int:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The lock stays with the open file, and children that are started do not inherit it.
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be written to: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in _IN_USE:
            raise InputError(
                f"another server uses the folder {folder}", "stop it, or choose another --folder"
            ) from error
        raise InputError(f"the folder {folder} cannot be locked: {error.strerror}") from error
    return descriptor


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""All recordings of one folder together: how much they take, which are old, and what a supervisor left that was killed.

A supervisor holds a lock on RECORDING/.lock for as long as it runs; what is not locked belongs to nobody any more. Only
names that a collector gives are ever deleted. What could be wrong: a network file system may keep locks within each
host, so a recording of another host must also have shown no sign of life for `SILENT_S`; where there are no locks at
all, nothing that was left is cleaned up.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import socket
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

from .finish import host_hash
from .manifest import NAME, Manifest

LOCK = ".lock"
RAW = ".raw"
DAMAGED = "damaged.json"
_FOLDER = re.compile(r"\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{12}-\d+(?:-\d+)?\Z")
_NEW = re.compile(r"\.new-\d+-\d+\Z")
_FILE = re.compile(
    r"(?:traceanalyzer-[\w.-]+\.pt\.trace\.json\.gz|steps-[\w.-]+\.csv\.gz|counters[\w.-]*\.csv\.gz|damaged\.json)\Z"
)
_TEMPORARY = re.compile(r"(?:traceanalyzer-|steps-|counters|recording\.json)[\w.-]*\.tmp\Z")
_NEW_S = 3600.0
SILENT_S = 300.0
"""After so long without a touch the lock of another host's recording is taken for a left one."""
_LOCK_WAIT_S = 2.0


@dataclass(frozen=True)
class Kept:
    """One finished file: its size and when it was written (epoch seconds)."""

    path: Path
    bytes: int
    written: float


@dataclass
class Room:
    """What was deleted: for its age, for the quota. exceeded: the new files did not fit and are among the latter."""

    old: list[Kept]
    excess: list[Kept]
    exceeded: bool


class Shelf:
    """The folder of recordings at `output`."""

    def __init__(self, output: Path) -> None:
        """Nothing is made yet."""
        self.output = output

    def make(self, name: str) -> tuple[Path, int]:
        """A new recording's folder, and the file descriptor that locks it. Raises `OSError`.

        It gets its name only when it is locked, so that nobody takes it for a left one.
        """
        self.output.mkdir(parents=True, exist_ok=True)
        fresh = self.output / f".new-{os.getpid()}-{time.time_ns()}"
        fresh.mkdir()
        (fresh / RAW).mkdir(mode=0o700)
        lock = os.open(str(fresh / LOCK), os.O_RDWR | os.O_CREAT, 0o600)
        _locked(lock, 0.0, without_locks=False)
        for attempt in range(1, 1000):
            folder = self.output / (name if attempt == 1 else f"{name}-{attempt}")
            if not folder.exists():
                try:
                    fresh.rename(folder)
                    return folder, lock
                except OSError:
                    if not folder.exists():
                        os.close(lock)
                        raise
        os.close(lock)
        raise FileExistsError(f"no name is left for a recording in {self.output}")

    def folders(self) -> list[Path]:
        """The recordings, oldest first."""
        return sorted(path for path in self.output.iterdir() if _FOLDER.match(path.name) and _is_folder(path))

    def clean(self) -> int:
        """Remove what killed supervisors were writing. Returns how many raw traces there were."""
        lost = 0
        for path in self.output.iterdir():
            if _NEW.match(path.name) and _is_folder(path) and time.time() - path.lstat().st_mtime > _NEW_S:
                shutil.rmtree(str(path), ignore_errors=True)
        for folder in self.folders():
            with contextlib.suppress(OSError), left(folder) as is_left:
                if is_left and (folder / LOCK).exists():
                    lost += _clean_folder(folder)
        return lost

    def kept(self) -> list[Kept]:
        """Every finished file of all recordings, oldest first."""
        found = []
        for folder in self.folders():
            with contextlib.suppress(OSError):
                for entry in os.scandir(str(folder)):
                    if _FILE.match(entry.name) and entry.is_file(follow_symlinks=False):
                        facts = entry.stat(follow_symlinks=False)
                        found.append(Kept(folder / entry.name, facts.st_size, facts.st_mtime))
        return sorted(found, key=lambda one: (one.written, one.path.name))

    def overhead(self) -> int:
        """Bytes of all manifests."""
        total = 0
        for folder in self.folders():
            with contextlib.suppress(OSError):
                total += (folder / NAME).lstat().st_size
        return total

    def make_room(self, quota_bytes: int, keep_s: float, own: Path, new: set[Path], mine_first: bool) -> Room:
        """Delete what is old, then the oldest files, until all recordings take no more than the quota.

        Args:
            quota_bytes: for finished files and manifests.
            keep_s: files that were written longer ago are deleted, seconds.
            own: the folder of the recording that asks. Its logs are not deleted.
            new: files of the window just finished. They go before all others where they alone are too large, and last
                otherwise.
            mine_first: whether the recording's own older files are worth more than the new ones.
        """
        kept, limit = self.kept(), quota_bytes - self.overhead()
        before = time.time() - keep_s
        old = [one for one in kept if one.written < before and one.path not in new and not _is_log_of(one, own)]
        room = Room(self.remove(old, "age"), [], False)
        kept = [one for one in kept if one not in old]
        latest = [one for one in kept if one.path in new]
        total = sum(one.bytes for one in kept)
        if sum(one.bytes for one in latest) <= limit:
            excess: list[Kept] = []
            for one in kept:
                if total <= limit:
                    break
                mine = one.path.parent == own
                if one.path not in new and not _is_log_of(one, own) and not (mine and mine_first):
                    excess.append(one)
                    total -= one.bytes
            room.excess.extend(self.remove(excess, "quota"))
        if total > limit:
            room.excess.extend(self.remove(latest, "quota"))
            room.exceeded = True
        return room

    def remove(self, files: list[Kept], reason: str) -> list[Kept]:
        """Delete finished files, and take them off the manifests of recordings that nobody holds. Returns the deleted.

        Whoever holds a recording sees by itself what is gone from it.
        """
        gone: dict[Path, list[Kept]] = {}
        for file in files:
            with contextlib.suppress(OSError):
                file.path.unlink()
                gone.setdefault(file.path.parent, []).append(file)
        for folder, removed in gone.items():
            with contextlib.suppress(OSError), left(folder) as is_left:
                manifest = Manifest.read(folder / NAME) if is_left else None
                if manifest is not None:
                    manifest.drop_files({one.path.name for one in removed}, reason)
                    manifest.write(now=True)
        return [file for removed in gone.values() for file in removed]

    def forget_empty(self, before: float) -> None:
        """Remove recordings that hold nothing any more and were last changed before an epoch second."""
        for folder in self.folders():
            with contextlib.suppress(OSError), left(folder) as is_left:
                names = {entry.name for entry in os.scandir(str(folder))}
                path = folder / NAME
                if is_left and names <= {NAME, LOCK} and (NAME not in names or path.lstat().st_mtime < before):
                    for name in names:
                        (folder / name).unlink()
                    folder.rmdir()

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether no other supervisor is making room in this folder now, which none then does.

        Another user's lock file may be closed to us: what is theirs is left to them, and what is ours is bounded.
        """
        try:
            fd = os.open(str(self.output / LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except PermissionError:
            yield True
            return
        try:
            yield _locked(fd, _LOCK_WAIT_S, without_locks=True)
        finally:
            os.close(fd)


@contextlib.contextmanager
def left(folder: Path) -> Iterator[bool]:
    """Whether nobody holds a recording; if so, nobody does until the block ends."""
    try:
        fd = os.open(str(folder / LOCK), os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield True
        return
    except OSError:
        yield False
        return
    try:
        silent = _of_this_host(folder) or time.time() - os.fstat(fd).st_mtime > SILENT_S
        yield silent and _locked(fd, 0.0, without_locks=False)
    finally:
        os.close(fd)


def _is_log_of(file: Kept, folder: Path) -> bool:
    """Whether it is a log of that recording, not a window."""
    return file.path.parent == folder and file.path.name.startswith(("steps-", "counters"))


def this_host() -> str:
    """This host, without its name."""
    return host_hash(socket.gethostname())


def _of_this_host(folder: Path) -> bool:
    return folder.name.split("-")[1:2] == [this_host()]


def _locked(fd: int, wait_s: float, without_locks: bool) -> bool:
    """Lock it; False where another process has it locked for so long, `without_locks` where there are none."""
    until = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
                return without_locks
        else:
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(0.02)


def _clean_folder(folder: Path) -> int:
    raw = folder / RAW
    lost = 0
    if _is_folder(raw):
        names = [entry.name for entry in os.scandir(str(raw))]
        lost = sum(name.endswith(".json") and not name.endswith(".meta.json") for name in names)
        shutil.rmtree(str(raw), ignore_errors=True)
    present = {entry.name for entry in os.scandir(str(folder))}
    for name in present:
        if _TEMPORARY.match(name):
            (folder / name).unlink()
    manifest = Manifest.read(folder / NAME)
    if manifest is not None:
        manifest.drop_files(manifest.names() - present, "removed")
        if lost:
            manifest.count_dropped("supervisor_lost", lost)
        manifest.write(now=True)
    (folder / LOCK).unlink()
    return lost


def _is_folder(path: Path) -> bool:
    """Whether it is a folder itself, not a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False

"""The runtime folder: private, temporary, with a short path; what the command's processes load and map lies in it.

Its path is short because Kineto makes sockets in it, and a socket's name has at most 107 bytes. It is removed when the
command and all its processes that hold a ring are gone; one that had to stay is removed by a later run.

What could be wrong: a process that was never seen (it had not imported torch yet) may outlive the folder. It then finds
nothing to load and runs as if not recorded.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any, Iterator, Mapping

from . import inside
from .alive import born
from .control import Control
from .inside import layout

PACKAGE = "_traceanalyzer_inside"
PREFIX = "ta-"
_LONGEST = 50
"""Bytes of the folder's path: Kineto's socket in it is named dynoconfigclient and 36 characters more."""
_OUTSIDE_PACKAGE = ("sitecustomize.py", "run.py")
"""Loaded by name from boot itself."""
_STALE_S = 86_400.0


class Runtime:
    """A runtime folder with everything in it. Raises `OSError` where none can be made.

    Args:
        config: what config.json says.
        fallback: a folder to use where no temporary one can be written.
    """

    def __init__(self, config: Mapping[str, Any], fallback: Path, steps: int, max_ms: int) -> None:
        """Make the folder, the control block and the files that the command's processes load."""
        self.path = _make(fallback)
        try:
            for name in ("boot/" + PACKAGE, "procs", "rings"):
                (self.path / name).mkdir(mode=0o700, parents=True)
            for name, text in sources():
                folder = self.boot if name in _OUTSIDE_PACKAGE else self.boot / PACKAGE
                (folder / name).write_bytes(text)
            (self.path / "config.json").write_text(json.dumps(config), encoding="utf-8")
            self.control = Control(self.path / "control", steps, max_ms)
        except OSError:
            shutil.rmtree(str(self.path), ignore_errors=True)
            raise

    @property
    def boot(self) -> Path:
        """What stands first on PYTHONPATH."""
        return self.path / "boot"

    def alive(self) -> list[int]:
        """Processes that have a ring and still run."""
        return _alive(self.path)

    def remove(self) -> None:
        """Remove the folder, unless a process of the command still lives in it."""
        self.control.close()
        if not self.alive():
            shutil.rmtree(str(self.path), ignore_errors=True)


def sources() -> Iterator[tuple[str, bytes]]:
    """The files of `inside`, from an installation or from the one-file build."""
    folder = Path(next(iter(inside.__path__)))
    if folder.is_dir():
        for path in sorted(folder.glob("*.py")):
            yield path.name, path.read_bytes()
        return
    archive = next(parent for parent in folder.parents if parent.is_file())
    prefix = folder.relative_to(archive).as_posix() + "/"
    with zipfile.ZipFile(str(archive)) as opened:
        for name in sorted(opened.namelist()):
            if name.startswith(prefix) and name.endswith(".py") and "/" not in name[len(prefix) :]:
                yield name[len(prefix) :], opened.read(name)


def remove_stale(folder: Path) -> None:
    """Remove what runs of ours left in a temporary folder when they were killed a day ago or more."""
    for old in folder.glob(PREFIX + "????????"):
        with contextlib.suppress(OSError, ValueError):
            if old.stat().st_uid == os.getuid() and not old.is_symlink() and _stale(old) and not _alive(old):
                shutil.rmtree(str(old), ignore_errors=True)


def _make(fallback: Path) -> Path:
    error: OSError | None = None
    for base in dict.fromkeys((Path(os.environ.get("TMPDIR") or "/tmp"), Path("/tmp"), Path("/dev/shm"), fallback)):  # noqa: S108
        base = base.absolute()
        # In front of PYTHONPATH, where a colon would end it; in a line of Kineto's, where a blank or # would.
        if len(os.fsencode(base)) + 1 + len(PREFIX) + 8 > _LONGEST or any(c in str(base) for c in ":#\n\r "):
            continue
        try:
            path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=str(base)))
        except OSError as found:
            error = found
            continue
        if _usable(path):
            remove_stale(base)
            return path
        shutil.rmtree(str(path), ignore_errors=True)
    raise error or OSError("no temporary folder with a short path")


def _usable(path: Path) -> bool:
    """Whether files can be written and mapped there: neither is so on every mount."""
    probe = path / "probe"
    try:
        with probe.open("w+b") as stream:
            stream.write(bytes(layout.PAGE))
            stream.flush()
            mmap.mmap(stream.fileno(), layout.PAGE).close()
        probe.unlink()
    except (OSError, ValueError):
        return False
    return True


def _alive(folder: Path) -> list[int]:
    found = []
    for ring in (folder / "rings").glob("*.ring"):
        with contextlib.suppress(ValueError):
            if born(int(ring.stem)) is not None:
                found.append(int(ring.stem))
    return found


def _stale(folder: Path) -> bool:
    with (folder / "control").open("rb") as stream:
        block = stream.read(layout.CONTROL_SIZE)
    if len(block) < layout.CONTROL_SIZE or layout.read_word(block, layout.MAGIC) != layout.CONTROL_MAGIC:
        return False
    return time.time() - layout.read_word(block, layout.HEARTBEAT_NS) / 1e9 > _STALE_S

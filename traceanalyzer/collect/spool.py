"""The folder of one recording: takes raw windows in, finishes them in one thread, keeps the disk within its bounds.

The main loop only puts work into a queue; every write is made by the worker. Nothing here raises into the main loop
after the start: a disk that is full, or fails, shows as `stopped`, which is looked at again every minute, and as counts
in the manifest. What is dropped first: in a sample, the oldest finished files of all recordings in the folder; where
the whole run is recorded, those of other recordings, and then the recording stops, as its beginning is worth most.

What could be wrong: raw traces that wait do not count as part of the quota, but are bounded by it again. A file that
is larger than the quota by itself is not kept.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import shutil
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, Sequence

from . import block as blocks
from .block import About, Sampling
from .facts import RawWindow, Window
from .finish import finish
from .manifest import NAME, Manifest, file_entry, first_facts, free_name, timestamp, window_entry
from .say import complain, counted, say
from .scan import Damaged, Scan, scan
from .shelf import DAMAGED, LOCK, RAW, Shelf, this_host

MOST_WAITING = 64
"""Windows that may wait for the worker; a further one is dropped."""
MAINTAIN_S = 60.0
_NICE = 10
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OF_DISK = ("disk_full", "disk_error")
_LEAST_PROBE, _MOST_PROBE = 1 << 20, 1 << 30
_REMEMBERED = 64
_HINTS = {
    "disk_full": "the disk is full",
    "disk_error": "the disk cannot be written",
    "quota": "the recording has reached its share of the disk (--disk)",
}


@dataclass(frozen=True)
class Plan:
    """What is recorded and how much of it may be kept. Sizes in bytes, times in seconds.

    keep_s: older files are deleted. retry_s: how often a full disk is looked at again. verbose: the last damaged raw
    trace is kept as damaged.json.
    """

    mode: str
    recorder: str
    quota_bytes: int
    keep_s: float
    tool_version: str = ""
    every_s: float | None = None
    verbose: bool = False
    retry_s: float = 60.0


@dataclass
class _Job:
    window: Window
    abouts: Mapping[int, About]
    bytes: int


class Spool:
    """The recording of this run, in a new folder under `output`.

    folder: the recording. raw: where recorders write. Both exist from the start on.
    """

    def __init__(self, output: Path, plan: Plan) -> None:
        """Make the folder and clean up after supervisors that were killed. Raises `OSError` where it cannot."""
        self.plan = plan
        self._began_ns = time.time_ns()
        self._shelf = Shelf(output)
        self.folder, self._lock_fd = self._shelf.make(f"{timestamp(self._began_ns)}-{this_host()}-{os.getpid()}")
        self.raw = self.folder / RAW
        facts = first_facts(self._began_ns, plan.tool_version, this_host(), plan.mode, plan.recorder)
        self._manifest = Manifest(self.folder / NAME, facts)
        self._manifest.write(now=True)
        self._shelf.clean()
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._too_many: deque[_Job] = deque()
        self._bytes_in_work = 0
        self._closing = False
        self._facts: dict[str, Any] = {}
        self._done: dict[int, dict[str, Any]] = {}
        self._trouble: str | None = None
        self._retry_at = self._maintain_at = 0.0
        self._largest_raw = self._recorded_ns = 0
        self._taken = self._lost = 0
        self._worker = self._start()

    @property
    def run_id(self) -> str:
        """The name of the recording's folder."""
        return self.folder.name

    @property
    def stopped(self) -> str | None:
        """Why no window should be opened now: disk_full | disk_error | quota | behind; None where one may."""
        return self._trouble or ("behind" if self._load() > 0.5 else None)

    def add(self, window: Window, abouts: Mapping[int, About]) -> None:
        """Take a window over, with what is known of each process by pid; its raw files are the spool's from now on."""
        job = _Job(window, abouts, sum(_size(raw.path) for raw in window.raws))
        with self._changed:
            fits = not self._jobs or (len(self._jobs) < MOST_WAITING and self._load(job.bytes) <= 1)
            (self._jobs if fits else self._too_many).append(job)
            self._changed.notify_all()

    def describe(self, **facts: Any) -> None:
        """Set facts of the manifest: processes (hello facts), steplogs, counters, failures."""
        if "processes" in facts:
            facts["processes"] = [blocks.process_facts(process) for process in facts["processes"]]
        with self._changed:
            self._facts.update(facts)
            self._changed.notify_all()

    def tick(self) -> None:
        """To be called by the main loop now and then: keeps the worker going. Never waits for the disk."""
        if not self._worker.is_alive() and not self._closing:
            self._worker = self._start()

    def wait(self, number: int, timeout_s: float) -> dict[str, Any] | None:
        """The manifest's entry of a window, `files` empty where none was kept; None if not finished in time."""
        with self._changed:
            self._changed.wait_for(lambda: number in self._done, timeout_s)
            return self._done.get(number)

    def manifest(self) -> dict[str, Any]:
        """What the manifest says now; not to be changed."""
        return dict(self._manifest.facts)

    def close(self, exit_code: int | None, signal: int | None, within_s: float | None = None) -> bool:
        """Finish what waits and complete the manifest. Returns whether that was done in time."""
        self.tick()
        with self._changed:
            self._facts.update(exit_code=exit_code, signal=signal)
            self._closing = True
            self._changed.notify_all()
        self._worker.join(within_s)
        return not self._worker.is_alive()

    def _load(self, more: int = 0) -> float:
        """How much waits, as a share of what may."""
        waiting = self._bytes_in_work + sum(job.bytes for job in self._jobs) + more
        return max(len(self._jobs) / MOST_WAITING, waiting / max(1, self.plan.quota_bytes))

    def _start(self) -> threading.Thread:
        worker = threading.Thread(target=self._work, name="traceanalyzer-spool", daemon=True)
        worker.start()
        return worker

    def _work(self) -> None:
        """The worker: one window after the other, and what is due in between."""
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work, self._pause())
                job = self._jobs.popleft() if self._jobs else None
                self._bytes_in_work = job.bytes if job else 0
                rejected, self._too_many = self._too_many, deque()
                facts, self._facts = self._facts, {}
                ends = self._closing and job is None
            self._update(facts)
            for one in rejected:
                self._give_up(one, "behind")
            if job is not None:
                entry = window_entry(job.window, [], [])
                try:
                    entry = self._take(job)
                finally:  # whoever waits for it is not left alone with a failure
                    self._answer(job.window.number, entry)
            self._maintain()
            if ends:
                self._end()
                return
            self._write_manifest(now=False)

    def _has_work(self) -> bool:
        return bool(self._jobs or self._too_many or self._facts or self._closing)

    def _pause(self) -> float:
        """Seconds until something is due."""
        due = self._maintain_at
        if self._trouble in _OF_DISK:
            due = min(due, self._retry_at)
        if self._manifest.changed:
            due = min(due, time.monotonic() + 0.5)
        return max(0.0, due - time.monotonic())

    def _answer(self, number: int, entry: dict[str, Any]) -> None:
        with self._changed:
            self._bytes_in_work = 0
            self._done[number] = entry
            while len(self._done) > _REMEMBERED:
                del self._done[next(iter(self._done))]
            self._changed.notify_all()

    def _update(self, facts: Mapping[str, Any]) -> None:
        for key, value in facts.items():
            if self._manifest.facts.get(key) != value:
                self._manifest.facts[key] = value
                self._manifest.changed = True

    def _give_up(self, job: _Job, reason: str) -> None:
        self._lost += 1
        for raw in job.window.raws:
            self._manifest.lose(job.window, raw.pid, reason)
            self._tidy(raw)
        self._manifest.add_window(entry := window_entry(job.window, [], []))
        self._answer(job.window.number, entry)

    def _take(self, job: _Job) -> dict[str, Any]:
        """Finish one window: its manifest entry, without files where none was kept."""
        window, abouts = job.window, job.abouts
        missing = [blocks.rank(abouts[pid].process) if pid in abouts else None for pid in window.missing]
        self._taken += 1
        files: list[dict[str, Any]] = []
        for raw in window.raws:
            try:
                files += self._finish(window, raw, abouts.get(raw.pid, About()), missing)
            finally:
                self._tidy(raw)
        if not window.raws and window.failed is None:  # what failed is counted where it did
            self._manifest.count_dropped("no_file")
        entry = window_entry(window, missing, files)
        self._manifest.add_window(entry)
        if files:
            spans = [(file["opened_ns"], file["closed_ns"]) for file in files]
            self._recorded_ns += max((end - begin for begin, end in spans if begin and end), default=0)
            names = {file["name"] for file in files} - self._make_room({self.folder / file["name"] for file in files})
            entry = {**entry, "files": [file for file in files if file["name"] in names]}
        if entry["files"]:
            if self.plan.mode == "sample" or self.plan.verbose:  # a whole run has several in a second
                self._tell(entry)
        else:
            self._taken -= 1
            self._lost += 1
        return entry

    def _finish(
        self, window: Window, raw: RawWindow, about: About, missing: Sequence[int | None]
    ) -> list[dict[str, Any]]:
        """The manifest's entry of one process' file; none where it is not kept, which is counted."""
        try:
            with raw.path.open("rb") as stream:
                self._largest_raw = max(self._largest_raw, os.fstat(stream.fileno()).st_size)
                found = scan(stream, raw.quiet_ns)
                target = self._target(window, raw, about, found)
                block = blocks.build(window, raw, about, self._sampling(raw, found), found, missing)
                return [file_entry(target.name, raw, about, found, finish(stream, found, target, block))]
        except Damaged as error:
            self._manifest.lose(window, raw.pid, "damaged", str(error))
            complain(f"window {window.number} of process {raw.pid} is not kept, its trace is damaged: {error}")
            if self.plan.verbose:
                with contextlib.suppress(OSError):
                    raw.path.replace(self.folder / DAMAGED)
        except MemoryError:
            self._manifest.lose(window, raw.pid, "no_memory")
        except OSError as error:
            if error.filename == str(raw.path):
                self._manifest.lose(window, raw.pid, "no_file" if error.errno == errno.ENOENT else "unreadable")
            else:
                self._manifest.lose(window, raw.pid, self._meet(error))
        return []

    def _target(self, window: Window, raw: RawWindow, about: About, found: Scan) -> Path:
        """Where the file goes. A process without a rank counts as rank 0 in its name only."""
        opened, rank = blocks.opened_ns(raw, found) or window.requested_ns, blocks.rank(about.process, found) or 0
        return self.folder / free_name(self.folder, this_host(), raw.pid, rank, opened)

    def _sampling(self, raw: RawWindow, found: Scan) -> Sampling:
        opened, closed = blocks.opened_ns(raw, found), blocks.closed_ns(raw, found)
        share = None
        if opened is not None and closed is not None and closed > self._began_ns:
            share = min(1.0, (self._recorded_ns + closed - opened) / (closed - self._began_ns))
        return Sampling(self.plan.mode, self.plan.every_s, self._taken, self._lost, share)

    def _tidy(self, raw: RawWindow) -> None:
        """Remove a raw trace and what its recorder wrote beside it."""
        for path in (raw.path, raw.path.with_suffix(".meta.json")):
            with contextlib.suppress(OSError):
                path.unlink()

    def _tell(self, entry: Mapping[str, Any]) -> None:
        files, size = entry["files"], sum(file["bytes"] for file in entry["files"])
        path = str(self.folder / files[0]["name"] if len(files) == 1 else self.folder)
        many = f" of {len(files)} processes" if len(files) > 1 else ""
        say(
            f"window {entry['number']}{many} ({entry['reason']}): {path}, {counted(files[0]['steps'], 'step')}, "
            f"{size} bytes; next: traceanalyzer report {shlex.quote(path)}"
        )

    def _make_room(self, new: set[Path]) -> set[str]:
        """Keep to quota and age. Returns the names of deleted files of this recording."""
        full = self.plan.mode == "full"
        try:
            with self._shelf.alone() as alone:
                if not alone:
                    return set()
                room = self._shelf.make_room(self.plan.quota_bytes, self.plan.keep_s, self.folder, new, full)
        except OSError as error:
            self._meet(error)
            return set()
        gone: set[str] = set()
        for reason, files in (("age", room.old), ("quota", room.excess)):
            mine = {file.path.name for file in files if file.path.parent == self.folder}
            self._manifest.drop_files(mine, reason)
            gone |= mine
        if room.exceeded and full:
            self._stop("quota")
        elif room.exceeded:
            complain("a window is larger than all that may be kept (--disk): it was dropped")
        return gone

    def _maintain(self) -> None:
        """What is due every minute: sign of life, age, files that others deleted, whether the disk is well again."""
        now = time.monotonic()
        if self._trouble in _OF_DISK and now >= self._retry_at:
            self._look_again()
        if now < self._maintain_at:
            return
        self._maintain_at = now + MAINTAIN_S
        with contextlib.suppress(OSError):
            os.utime(self._lock_fd)
            self._shelf.clean()
            self._make_room(set())
            self._shelf.forget_empty(time.time() - self.plan.keep_s)
            self._note_removed()

    def _note_removed(self) -> None:
        """Take off the list what others deleted. Raises `OSError`."""
        present = {path.name for path in self.folder.iterdir()}
        self._manifest.drop_files(self._manifest.names() - present, "removed")

    def _meet(self, error: OSError) -> str:
        """A write failed: stop recording until the disk is well. Returns the reason to count it under."""
        reason = "disk_full" if error.errno in _FULL else "disk_error"
        self._stop(reason)
        return reason

    def _stop(self, reason: str) -> None:
        if self._trouble != reason:
            complain(f"no window is recorded any more: {_HINTS[reason]}; what is whole is kept, the command runs on")
        self._trouble, self._retry_at = reason, time.monotonic() + self.plan.retry_s

    def _look_again(self) -> None:
        """Record again where the disk takes as much as the largest raw trace, and its compressed copy, need."""
        probe = self.raw / ".probe"
        try:
            with probe.open("wb") as stream:
                os.posix_fallocate(stream.fileno(), 0, min(_MOST_PROBE, _LEAST_PROBE + 2 * self._largest_raw))
            self._manifest.write(now=True)
        except OSError:
            self._retry_at = time.monotonic() + self.plan.retry_s
        else:
            self._trouble = None
            say("the disk can be written again: recording goes on")
        finally:
            with contextlib.suppress(OSError):
                probe.unlink()

    def _write_manifest(self, now: bool) -> None:
        try:
            self._manifest.write(now)
        except OSError as error:
            self._meet(error)

    def _end(self) -> None:
        """Complete the manifest and let go of the folder."""
        with contextlib.suppress(OSError):
            self._note_removed()
        self._manifest.facts["finished_at"] = timestamp(time.time_ns())
        self._manifest.changed = True
        self._write_manifest(now=True)
        shutil.rmtree(str(self.raw), ignore_errors=True)
        with contextlib.suppress(OSError):
            (self.folder / LOCK).unlink()
        os.close(self._lock_fd)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0

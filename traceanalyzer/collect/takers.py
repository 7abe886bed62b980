"""How one window is taken by each of the two recorders, over all processes at once.

A taker says whether it could start now, starts, and collects the files. What could be wrong: a process that ends, or
whose Kineto drops the window, gives no file and no message. It is given up when it is gone, when its Kineto asks for
work again, or after two minutes; why is a conclusion from that.
"""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any, Iterable, Protocol, Sequence

from .facts import RawWindow, Window
from .inside import layout
from .kineto import Daemon, start_s, window_config
from .processes import Process
from .scan import Damaged, scan

LABELS_BEFORE_NS = 500_000_000
LABELS_AFTER_NS = 1_500_000_000
"""Labels begin before a window and end after it, so that every step in it has one though Kineto starts late."""
TAIL_NS = 100_000_000
"""So long before a window's end no operation is taken any more, see `inside.quiet`."""
GAP_S = 5.0
"""From one on-demand window's end to the next one's start."""
ENDED = "the process ended before its file was complete"
UNFETCHED = "its Kineto did not fetch the window in time"
DROPPED = "its Kineto dropped the window: the machine was too busy to begin in time, or another profiler took over"
EMPTY = "no step is in its file: its Kineto began too late, or a step lasts longer than the window"
SILENT = "no file came within two minutes"
UNDONE = "there was no time left to wait for its file"
WITHOUT_STEPS = "it ran no step"
PASSED_OVER = "it did not take the window: a profiler of the script's own was running"
"""Why a process gave no file."""
PASSING = frozenset({UNFETCHED, DROPPED, EMPTY})
"""Those for which the next try can well succeed."""
_WRITING_S = 120.0
_HELD_S = 0.04
"""From holding the script's profilers back to looking whether one was quicker."""
_WAIT_FOR_STEPS_S = 20.0
_ASKED_AGAIN_S = 3.0
_UNUSED = 2
"""A process that asks for work so often after a window's end has no file on its way."""
_UNUSED_S = 0.5
_FETCHED_LATE_S = 1.05
"""A window that is fetched later than this before its start can be missed."""
_SMALL_BYTES = 1 << 18
_AROUND_NS = 500_000_000
"""Where steps ran so shortly before or after a window, one belongs into its file."""
_TORCH_ON_CUDA = (2, 7)
"""Kineto of older releases starts on demand with the CPU alone."""
_TEXTS = ("recorder", "closed_by")
_INTEGERS = ("opened_ns", "closed_ns")
_NUMBERS = ("open_ms", "stop_ms", "save_ms")


class Asks(Protocol):
    """What a taker needs of `control.Control`."""

    def request(self, window: int, steps: int, ms: int) -> None:
        """Number and limits of a window."""

    def record_span(self, from_ns: int, until_ns: int, quiet_ns: int, end_ns: int) -> None:
        """When steps carry labels, when operations are taken no more, and when Kineto ends."""

    def hold_profilers(self, until_ns: int) -> None:
        """Until when no profiler session of the script may start."""


class OnDemand:
    """Kineto's own thread records. All processes start at the same time; the end is a time, too."""

    def __init__(self, control: Asks, daemon: Daemon, raw: Path, shapes: bool, stack: bool) -> None:
        """Files go to `raw`."""
        self._control = control
        self._daemon = daemon
        self._raw = raw
        self._shapes, self._stack = shapes, stack
        self._open: dict[int, Process] = {}
        self._unused: dict[int, int] = {}
        self._turns: dict[int, float] = {}
        """Epoch seconds at which the thread of a process' Kineto looked, and looks every second from then on."""
        self._late = _Late()
        self._start_ns = self._end_ns = 0
        self._closed_by = "time"
        self._over_s = float("-inf")
        self._held_s: float | None = None
        self._stem = ""

    def able(self, process: Process) -> bool:
        """Whether a process can be recorded this way: its Kineto asks for work, and records GPUs when asked."""
        return self._daemon.polling(process.pid) and not _too_old(process.facts)

    def why_not(self, processes: Iterable[Process]) -> str:
        """Why processes that hold a model cannot be recorded this way."""
        found = list(processes)
        if any(_too_old(process.facts) for process in found):
            return "recording on demand on CUDA needs torch 2.7 or newer; --recorder python records at step boundaries"
        if any(process.forked for process in found):
            return (
                "the model's process was forked after torch was imported and has no Kineto thread: "
                "start it by spawn (VLLM_WORKER_MULTIPROC_METHOD=spawn), or use --recorder python"
            )
        return "the model's process does not ask for work: its torch was built without Kineto's daemon, or just started"

    def rests(self, now: float) -> bool:
        """Whether the last window was just now."""
        return now < self._over_s + GAP_S

    def hindrance(self, targets: Iterable[Process], now: float) -> str | None:
        """What keeps a window from starting now.

        A session of the script that meets one of Kineto's own crashes the process. So such sessions are held back
        first, and only when none has started by then may the window start.
        """
        found = self._hindrance(targets)
        if found is not None:
            self.release()
        elif self._held_s is None:
            self._held_s = now
            self._control.hold_profilers(int((now + _WRITING_S) * 1e9))
            found = "the script's profilers are being held back"
        elif now - self._held_s < _HELD_S:
            found = "the script's profilers are being held back"
        return found

    def _hindrance(self, targets: Iterable[Process]) -> str | None:
        for process in targets:
            if not self._daemon.idle(process.pid):
                return "Kineto is busy"
            hindrance = _hindrance(process)
            if hindrance:
                return hindrance
        return None

    def start(
        self, window: Window, targets: Sequence[Process], steps: int, ms: int, by_steps: bool, now: float
    ) -> None:
        """Send the window to all targets. Raises `ValueError` where Kineto cannot write to the folder."""
        self._late.sweep()
        fetches = {process.pid: now + self._daemon.asks_in(process.pid) for process in targets}
        start = start_s(fetches.values(), (self._turns.get(pid, fetch) for pid, fetch in fetches.items()), window.tries)
        window.lost.clear()
        self._stem = f"od-{window.number}" + (f".{window.tries}" if window.tries > 1 else "")
        self._start_ns = int(start * 1000) * 1_000_000
        quiet_ns = self._start_ns + ms * 1_000_000
        self._end_ns = quiet_ns + TAIL_NS
        self._closed_by = "steps" if by_steps else "time"
        config = window_config(
            self._raw / f"{self._stem}.json", self._start_ns, ms + TAIL_NS // 1_000_000, self._shapes, self._stack
        )
        self._control.request(window.number, steps, ms)
        self._control.record_span(
            self._start_ns - LABELS_BEFORE_NS, self._end_ns + LABELS_AFTER_NS, quiet_ns, self._end_ns
        )
        self._open = {process.pid: process for process in targets}
        self._unused.clear()
        for process in targets:
            process.log.mark(int(now * 1e9), self._end_ns + LABELS_AFTER_NS)
            self._daemon.send(process.pid, config, start - now - _FETCHED_LATE_S)

    def collect(self, window: Window, live: set[int], now: float) -> bool:
        """Take the files that are there; True when nothing more is to come."""
        for pid, process in list(self._open.items()):
            why = self._why_lost(pid, live, now)  # before the file is looked for: Kineto asks again when it is there
            self._note_turn(pid, now)
            path = self._path(pid)
            if path.exists() and self._is_empty(path, process):
                self.give_up(window, EMPTY, pid)
            elif path.exists():  # renamed when complete
                raw = RawWindow(
                    path, pid, "ondemand", self._start_ns, self._end_ns, self._closed_by, quiet_ns=self._quiet(process)
                )
                window.raws.append(raw)
                self._turns[pid] = self._end_ns / 1e9
                del self._open[pid]
            elif why:
                self.give_up(window, why, pid)
        self._late.sweep()
        if self._open:
            return False
        if window.raws:
            self._over_s = now
        self.release()
        return True

    def release(self) -> None:
        """Let the script's profilers start again."""
        if self._held_s is not None:
            self._held_s = None
            self._control.hold_profilers(0)

    def spans(self) -> tuple[int, int]:
        """From when until when the window's steps are recorded whole, epoch nanoseconds."""
        return self._start_ns, self._end_ns - TAIL_NS

    def give_up(self, window: Window, why: str, pid: int | None = None) -> None:
        """Wait no longer for one process, or for all."""
        for given_up in list(self._open) if pid is None else [pid]:
            path = self._path(given_up)
            self._late.add(path, path.with_name(path.name + ".tmp"))
            window.missing.append(given_up)
            window.lost[given_up] = why
            del self._open[given_up]
        if not self._open and not window.raws:  # nobody labels, nobody tells torch
            self._control.record_span(0, 0, 0, 0)

    def _quiet(self, process: Process) -> int | None:
        """When a process' torch was told to take no more; None: it was not, not for this window."""
        told = process.ring.word(layout.RING_QUIET_NS)
        return told if self._start_ns < told < self._end_ns else None

    def _path(self, pid: int) -> Path:
        return self._raw / f"{self._stem}_{pid}.json"

    def _note_turn(self, pid: int, now: float) -> None:
        """Remember when a process fetched its first window: then its Kineto starts the thread that looks for begins."""
        if pid not in self._turns:
            ago = self._daemon.fetched_ago(pid)
            if ago is not None:
                self._turns[pid] = now - ago

    def _is_empty(self, path: Path, process: Process) -> bool:
        """Whether steps ran around the window and none is in its file: it began too late, or was shorter than a step.

        A window that was as long as may be is kept as it is.
        """
        try:
            if self._closed_by == "time" or path.stat().st_size > _SMALL_BYTES:
                return False
            with path.open("rb") as stream:
                steps = scan(stream, self._quiet(process)).steps
        except OSError:
            return False
        except Damaged:  # a file without any event, or one that the spool will complain of
            steps = 0
        return not steps and process.log.ran(self._start_ns - _AROUND_NS, self._end_ns + _AROUND_NS)

    def _why_lost(self, pid: int, live: set[int], now: float) -> str | None:
        start, end = self._start_ns / 1e9, self._end_ns / 1e9
        unused = self._daemon.unused.get(pid, 0)
        if pid not in live:
            return ENDED
        if now > end + _WRITING_S:
            return SILENT
        if self._daemon.fetched_ago(pid) is None:
            return UNFETCHED if now > start - _FETCHED_LATE_S / 2 else None
        if now < end + _UNUSED_S or unused < self._unused.get(pid, 0):
            self._unused[pid] = unused
        return DROPPED if unused >= self._unused.setdefault(pid, unused) + _UNUSED else None


class _Late:
    """Files that nobody waits for any more: only those of a finished window are listed, so they are deleted."""

    def __init__(self) -> None:
        self._paths: list[Path] = []

    def add(self, *paths: Path) -> None:
        """What may still come."""
        self._paths = [*self._paths, *paths][-256:]

    def sweep(self) -> None:
        """Delete what has come."""
        for path in self._paths:
            with contextlib.suppress(OSError):
                path.unlink()


class AtSteps:
    """`torch.profiler` in the processes themselves records, from one step boundary to another."""

    def __init__(self, control: Asks, raw: Path) -> None:
        """Files go to `raw`."""
        self._control = control
        self._raw = raw
        self._open: dict[int, Process] = {}
        self._asked_s = 0.0
        self._ms = 0
        self._number = 0
        self._late = _Late()

    def able(self, process: Process) -> bool:
        """Any process with steps can be recorded this way."""
        return process.holds_model

    def why_not(self, processes: Iterable[Process]) -> str:
        """Why processes that hold a model cannot be recorded: never."""
        return "no process can be recorded"

    def rests(self, now: float) -> bool:
        """Never: the processes themselves keep sessions apart."""
        return False

    def hindrance(self, targets: Iterable[Process], now: float) -> str | None:
        """What keeps a window from starting now."""
        return next((found for found in map(_hindrance, targets) if found), None)

    def start(
        self, window: Window, targets: Sequence[Process], steps: int, ms: int, by_steps: bool, now: float
    ) -> None:
        """Ask for the window; each process opens it at its next step."""
        self._late.sweep()
        self._number, self._ms, self._asked_s = window.number, ms, now
        self._open = {process.pid: process for process in targets}
        self._control.request(window.number, steps, ms)

    def collect(self, window: Window, live: set[int], now: float) -> bool:
        """Take the files that are there; True when nothing more is to come."""
        for pid, process in list(self._open.items()):
            raw = read_meta(self._raw / f"{pid}-{self._number}.meta.json")
            if raw is not None:
                window.raws.append(raw)
                del self._open[pid]
            else:
                why = self._why_lost(process, live, now)
                if why:
                    self.give_up(window, why, pid)
        self._late.sweep()
        return not self._open

    def release(self) -> None:
        """Nothing is held back: the processes themselves keep sessions apart."""

    def spans(self) -> tuple[int, int]:
        """The processes say themselves when they recorded."""
        return 0, 0

    def give_up(self, window: Window, why: str, pid: int | None = None) -> None:
        """Wait no longer for one process, or for all; with the last of them, let nobody open it any more."""
        for given_up in list(self._open) if pid is None else [pid]:
            window.missing.append(given_up)
            window.lost[given_up] = why
            stem = f"{given_up}-{self._number}"
            self._late.add(*(self._raw / (stem + end) for end in (".json", ".json.tmp", ".meta.json")))
            del self._open[given_up]
        if not self._open:
            self._control.request(self._number, 0, 0)

    def _why_lost(self, process: Process, live: set[int], now: float) -> str | None:
        waited = now - self._asked_s - self._ms / 1000
        if process.pid not in live:
            return ENDED
        if waited > _WRITING_S:
            return SILENT
        if process.ring.word(layout.RING_WINDOW) == self._number:
            return None
        if process.ring.word(layout.RING_SEEN_WINDOW) == self._number:
            return PASSED_OVER if waited > _ASKED_AGAIN_S else None
        return WITHOUT_STEPS if waited > _WAIT_FOR_STEPS_S else None


def read_meta(path: Path) -> RawWindow | None:
    """What the `python` recorder says of a window of one process, PID-WINDOW.meta.json; None where there is none."""
    try:
        meta = json.loads(path.read_bytes())
        pid, number = (int(part) for part in path.name.split(".")[0].split("-"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(meta, dict):
        return None
    found: dict[str, Any] = {name: meta[name] for name in _TEXTS if isinstance(meta.get(name), str)}
    found.update((name, meta[name]) for name in _INTEGERS if isinstance(meta.get(name), int))
    found.update((name, float(meta[name])) for name in _NUMBERS if _is_number(meta.get(name)))
    return RawWindow(path.with_name(f"{pid}-{number}.json"), pid, found.pop("recorder", "python"), **found)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _hindrance(process: Process) -> str | None:
    if process.foreign_profilers:
        return "a profiler of the script's own is running"
    if process.open_scopes:
        return "a scope of the last recording is still open"
    return None


def _too_old(facts: dict[str, Any]) -> bool:
    if facts.get("device") != "cuda":
        return False
    parts = str(facts.get("torch", "")).split(".")
    numbers = tuple(int(part) for part in parts[:2] if part.isdigit())
    return len(numbers) == 2 and numbers < _TORCH_ON_CUDA

"""Everything that records, in a thread of its own: whatever fails in it, the command is still waited for.

The main loop (`supervisor`) starts it, tells it what the user wants, and waits for it at the end. What could be wrong:
an error of ours ends this thread. Then its heartbeat stops, no process opens a window any more, and the command runs on
unrecorded; that is said once.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any, Mapping

from . import kineto, service
from .counters import Counters
from .endpoint import Endpoint, find_token
from .facts import Refused, Window
from .handover import HandOver
from .inside import layout
from .losses import Losses
from .options import Options
from .processes import Processes
from .runtime_folder import Runtime
from .say import complain, say
from .spool import Plan, Spool
from .triggers import Triggers
from .windows import Windows

TICK_S = 0.05
_TELL_S = 1.0
"""How often the manifest is told about the processes."""
COUNTERS_FILE = "counters.csv.gz"


class Recording:
    """One run's recording. Its methods are for the main thread.

    seen: hello facts of every process that reported, by its number; with `steps`, how many it ran.
    environment: what the recorders need in the command's environment.
    """

    def __init__(self, options: Options, version: str) -> None:
        """Make the recording's folder and the runtime folder. Raises `OSError`, and `ValueError` for a bad token."""
        self.options = options
        self.seen: dict[int, dict[str, Any]] = {}
        self.steps: dict[int, int] = {}
        output = Path(options.output).absolute()
        self.spool = Spool(output, _plan(options, version))
        try:
            self._prepare(output)
        except (OSError, ValueError):
            self.spool.close(None, None)
            raise
        now = time.time()
        self._processes = Processes(self.runtime.path, self._daemon.polling if self._daemon is not None else None)
        self.windows = Windows(
            options, self.runtime.control, self._processes, self._daemon, self.spool.raw, now
        )  # fmt: skip
        self._triggers = Triggers(options, time.monotonic())
        self._losses = Losses(options.mode == "full")
        self._counters = self._make_counters()
        url = options.metrics_url or service.metrics_url(options.command)
        self._service = service.Service(url) if url and options.mode == "sample" else None
        self._handover = HandOver(self.spool, self._processes, self._counters, self._service)
        self._begin_s = now + (options.start_after_s if options.mode == "full" else 0.0)
        self._told_s = 0.0
        self._paused = threading.Event()
        self._settled = threading.Event()
        self._ends = threading.Event()
        self._end: tuple[int | None, int | None] = (None, None)
        self._thread = threading.Thread(target=self._run, name="traceanalyzer-recording", daemon=True)

    def _prepare(self, output: Path) -> None:
        """What is opened, and may fail."""
        options = self.options
        max_ms = max(1, round(options.window_s * 1000))
        token = find_token(output, os.environ) if options.listen else ""
        self.runtime = Runtime(_config(options, self.spool, max_ms), output, options.steps, max_ms)
        self._daemon = None
        try:
            self.environment = self._variables(os.environ)
            if options.recorder == "ondemand":
                self._daemon = kineto.Daemon(self.runtime.path)
        except OSError:
            self.runtime.remove()
            raise
        self._endpoint: Endpoint | None = None
        if options.listen:
            try:
                self._endpoint = Endpoint(options.listen, token, self.spool)
            except OSError as error:  # the other triggers work
                complain(f"nothing is served on {options.listen}: {error.strerror or error}")

    def _variables(self, given: Mapping[str, str]) -> dict[str, str]:
        """What the recorders need in the command's environment. Raises `OSError`."""
        if self.options.recorder == "ondemand":
            return kineto.environment(self.runtime.path, self.spool.raw, given)
        # At its default, Kineto prints lines on the command's standard error at each window.
        return {} if "KINETO_LOG_LEVEL" in given else {"KINETO_LOG_LEVEL": "6"}

    def start(self) -> None:
        """Begin, just before the command is started."""
        if self._daemon is not None:
            self._daemon.start()
        if self._counters is not None:
            self._counters.start()
        if self._endpoint is not None:
            self._endpoint.start()
            say(f"windows are taken at POST {self._endpoint.url}/windows")
        self._thread.start()

    @property
    def works(self) -> bool:
        """Whether the thread is there: without it nothing is recorded."""
        return self._thread.is_alive()

    def ask(self, reason: str) -> None:
        """Someone wants a window."""
        self._triggers.ask(reason)

    def pause(self) -> None:
        """Close open windows and open no further one; `settled` says when that is done."""
        self._settled.clear()
        self._paused.set()
        self.runtime.control.stop()
        self.runtime.control.flush()

    def resume(self) -> None:
        """Take `pause` back."""
        self._paused.clear()

    @property
    def settled(self) -> bool:
        """Whether nothing is open after `pause`, or nothing can be waited for."""
        return self._settled.is_set() or not self.works

    def end(self, exit_code: int | None, signal: int | None) -> None:
        """The command has ended so: finish what there is. `works` turns False when that is done."""
        self._end = exit_code, signal
        self._ends.set()

    @property
    def ended_by(self) -> int | None:
        """The signal that ended the command; None where it left by itself, or runs."""
        return self._end[1]

    def remove(self) -> int:
        """Remove the runtime folder, unless processes of the command still run in it: their number."""
        left = self.runtime.alive()
        self.runtime.remove()
        return len(left)

    def _run(self) -> None:
        while not self._ends.wait(TICK_S):
            self._tick()
        self._finish()

    def _tick(self) -> None:
        now = time.time()
        self.runtime.control.beat()
        self._processes.refresh()
        self._handover.see()
        self._stop_or_go(now)
        if self.options.mode == "sample":
            reason = self._triggers.due(time.monotonic(), self._processes.live)
            if reason is not None:
                self._request(reason, now)
            self._answer_asks(now)
        if self._paused.is_set():
            self.windows.flush(now)
        self.windows.tick(now)
        self._handover.watch(self.windows.current, self.runtime.control, time.time_ns())
        self._drain()
        self.spool.tick()
        if self._paused.is_set() and not self._is_busy():
            self._settled.set()
        self._tell()

    def _stop_or_go(self, now: float) -> None:
        stopped = bool(self.runtime.control.word(layout.STOPPED))
        wanted = self._paused.is_set() or now < self._begin_s or self.spool.stopped is not None
        if stopped and not wanted:
            self.runtime.control.resume()
        elif wanted and not stopped:
            self.runtime.control.stop()

    def _request(self, reason: str, now: float) -> None:
        answer = self._ask_for(reason, now)
        if isinstance(answer, Refused) and (reason == "signal" or self.options.verbose):
            say(f"no window: {answer.message}")

    def _answer_asks(self, now: float) -> None:
        for ask in self._endpoint.asks() if self._endpoint is not None else ():
            ask.answer(self._ask_for("http", now, ask.steps))

    def _ask_for(self, reason: str, now: float, steps: int | None = None) -> Window | Refused:
        answer = self.windows.request(reason, now, steps)
        if isinstance(answer, Window) and self.options.verbose:
            say(f"window {answer.number} is asked for ({reason})")
        return answer

    def _drain(self) -> None:
        for window in self.windows.finished():
            if window.failed is not None:
                self._failed(window, window.failed)
            self._handover.add(window)
        self._handover.tick()

    def _failed(self, window: Window, why: Refused) -> None:
        if window.reason in ("signal", "http") or self.options.verbose:
            say(f"window {window.number} was not taken: {why.message}")

    def _is_busy(self) -> bool:
        """Whether a window is open somewhere, or is being written."""
        if self.windows.current is not None:
            return True
        return any(process.ring.word(layout.RING_WINDOW) for process in self._processes.live)

    def _tell(self) -> None:
        """What is known of the processes goes into the manifest; it also says what the hints at the end need."""
        now = time.monotonic()
        if now - self._told_s < _TELL_S and not self._ends.is_set():
            return
        self._told_s = now
        for process in [*self._processes.ended, *self._processes.live]:
            self.seen[process.pid] = {**process.facts, "failures_total": process.failures}
            self.steps[process.pid] = self.steps.get(process.pid, 0) or len(process.log)
            self._losses.see(process, self.windows.files[process.pid])
        failures = [dict(one, pid=pid) for pid, facts in self.seen.items() for one in facts.get("failures") or ()]
        if self._daemon is not None and self._daemon.refused:
            error = "what a process asked for was not understood"
            failures.append({"where": "kineto", "count": self._daemon.refused, "error": error})
        self.spool.describe(
            processes=list(self.seen.values()), failures=failures, refused=dict(self.windows.dropped),
            lost=self._losses.counts(self._processes.let_go),
        )  # fmt: skip

    def _finish(self) -> None:
        """Wait for what orphans of the command still write, then complete the recording."""
        self.runtime.control.stop()
        self.runtime.control.flush()
        until = time.monotonic() + self.options.grace_s
        while True:
            now = time.time()
            self.runtime.control.beat()
            self._processes.refresh()
            self._handover.see()
            self._answer_asks(now)
            self.windows.flush(now)
            self.windows.tick(now)
            self._drain()
            if not self._is_busy() or time.monotonic() > until:
                break
            time.sleep(TICK_S)
        self.windows.close(time.time())
        if self._daemon is not None:
            self._daemon.close()
        counters = self._counters.stop() if self._counters is not None else None
        self._processes.close()
        self._drain()
        self._handover.close()
        self._tell()
        self.spool.describe(steplogs=self._write_steplogs(), counters=counters)
        self.spool.close(*self._end)
        if self._endpoint is not None:
            self._endpoint.close()
        if self._service is not None:
            self._service.close()

    def _write_steplogs(self) -> list[str]:
        names = []
        for process in self._processes.ended:
            name = f"steps-{process.pid}.csv.gz"
            if len(process.log):
                try:
                    process.log.write_csv(self.spool.folder / name)
                except OSError as error:
                    complain(f"the step log of process {process.pid} cannot be written: {error.strerror}")
                else:
                    names.append(name)
        return names

    def _make_counters(self) -> Counters | None:
        if self.options.counters_s is None:
            return None
        path = self.spool.folder / COUNTERS_FILE
        return Counters(self.options.counters_s, path, pids=lambda: list(self.seen))


def _plan(options: Options, version: str) -> Plan:
    return Plan(
        mode=options.mode, recorder=options.recorder, quota_bytes=options.disk_bytes, keep_s=options.keep_s,
        tool_version=version, every_s=options.every_s, verbose=options.verbose,
    )  # fmt: skip


def _config(options: Options, spool: Spool, max_ms: int) -> dict[str, Any]:
    """What the command's processes read, see docs/adr/0009-collector.md."""
    return {
        "schema": 1, "mode": options.mode, "recorder": options.recorder, "steps": options.steps, "max_ms": max_ms,
        "record_shapes": options.record_shapes, "with_stack": options.with_stack, "step": list(options.step),
        "raw": str(spool.raw), "run": spool.run_id, "verbose": options.verbose,
    }  # fmt: skip

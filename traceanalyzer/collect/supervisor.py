"""`collect`: starts the command, stays beside it, passes signals on, and ends as it ended.

What could be wrong: while open windows are closed, a signal waits, at most `--grace`; a second one does not. A command
that ends while a process of its own runs on ends the recording: nobody waits for that process any more.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Sequence

from . import launch, service, summary
from .command import FROM_TERMINAL, Command, Signals, die_of, in_foreground
from .endpoint import TOKEN_VARIABLE
from .launch import LaunchError
from .options import Options, UsageError, parse
from .recording import Recording
from .say import complain, say, set_quiet
from .version import tool_version

USAGE = 2
"""Exit code where the request cannot be carried out."""
_TICK_S = 0.05
_AT_ONCE = (signal.SIGCONT, signal.SIGTSTP, signal.SIGWINCH)
"""Passed on without closing a window: they end nothing."""
_ENDING = (signal.SIGTERM, signal.SIGQUIT)
"""After these the command is expected to end: no window is opened any more. A script may well outlive the others."""


def main(arguments: Sequence[str]) -> int:
    """Do what the words after `collect` ask for. Returns the exit code, or dies of the signal the command died of."""
    try:
        options = parse(arguments, tool_version())
    except UsageError as error:
        complain(str(error))
        return USAGE
    set_quiet(options.quiet)
    if options.check:
        from . import check

        return check.run(options)
    if options.attach:
        from . import attach

        return attach.run(options)
    return run(options)


def run(options: Options) -> int:
    """Record a command. Returns its exit code, or dies of the signal it died of."""
    try:
        executable = launch.resolve(options.command, os.environ.get("PATH"))
        launch.injected(options.command, executable, options.inject, Path("boot"))
    except LaunchError as error:
        complain(str(error))
        return error.code
    try:
        recording, variables = _prepare(options)
    except ValueError as error:
        complain(str(error))
        return USAGE
    except OSError as error:
        complain(f"nothing can be recorded to {options.output}: {error.strerror or error}")
        if options.mode == "full":
            return USAGE
        recording, variables = None, dict(os.environ)
    variables.pop(TOKEN_VARIABLE, None)
    return Supervisor(options, executable, recording).run(variables)


def _prepare(options: Options) -> tuple[Recording | None, dict[str, str]]:
    recording = Recording(options, tool_version())
    extra = dict(recording.environment)
    if options.recorder == "ondemand" and service.engine_of(options.command) == "vllm":
        extra.update(_spawned_workers())
    runtime = recording.runtime
    return recording, launch.environment(os.environ, runtime.path, runtime.boot, extra)


def _spawned_workers() -> dict[str, str]:
    """A forked worker has no Kineto thread to ask for work."""
    name = "VLLM_WORKER_MULTIPROC_METHOD"
    if name in os.environ:
        return {}
    say(f"{name}=spawn is set, so that vLLM's workers can be recorded on demand")
    return {name: "spawn"}


class Supervisor:
    """One command and its recording, if there is one."""

    def __init__(self, options: Options, executable: str, recording: Recording | None) -> None:
        """Start nothing yet."""
        self._options = options
        self._executable = executable
        self._recording = recording
        self._held: list[int] = []
        """Signals that wait until open windows are closed."""
        self._held_until = 0.0
        self._lost = False

    def run(self, variables: dict[str, str]) -> int:
        """Run the command to its end and finish the recording; returns the exit code."""
        words = list(self._options.command)
        if self._recording is not None:
            boot = self._recording.runtime.boot
            words = launch.injected(words, self._executable, self._options.inject, boot)
            threading.excepthook = self._explain
            self._recording.start()
        executable = self._executable if words[0] == self._options.command[0] else launch.resolve(words, None)
        signals = Signals()
        try:
            command = Command(words, executable, variables)
        except LaunchError as error:
            signals.close()
            self._end_recording(signals=None, exit_code=error.code, number=None)
            complain(str(error))
            return error.code
        while command.status is None:
            for number in signals.wait(_TICK_S):
                self._signal(command, number)
            command.reap()
            self._go_on(command)
        self._end_recording(signals, command.exit_code, command.signal)
        signals.close()
        if command.signal is not None:
            die_of(command.signal)
        return command.exit_code or 0

    def _signal(self, command: Command, number: int) -> None:
        recording = self._recording
        if number == signal.SIGUSR2 and self._is_ours(command):
            return
        seen = number in FROM_TERMINAL and in_foreground()
        if number in _AT_ONCE or recording is None:
            if not seen:
                command.send(number)
            if number == signal.SIGTSTP:
                os.kill(os.getpid(), signal.SIGSTOP)
                command.send(signal.SIGCONT)
            return
        if self._held:
            self._pass_on(command)
            command.send(number)
            return
        recording.pause()
        self._held_until = time.monotonic() + self._options.grace_s
        self._held.append(0 if seen else number)

    def _is_ours(self, command: Command) -> bool:
        """Take SIGUSR2 as the wish for a window: always in mode `sample`, else where the command would die of it."""
        if self._options.mode == "sample":
            if self._recording is not None:
                self._recording.ask("signal")
            else:
                say("asked for a window, but nothing is recorded in this run")
            return True
        ours = command.would_die_of(signal.SIGUSR2)
        if ours:
            say("asked for a window, but --mode full records everything; the signal is not passed on")
        return ours

    def _go_on(self, command: Command) -> None:
        recording = self._recording
        if self._held and (recording is None or recording.settled or time.monotonic() > self._held_until):
            self._pass_on(command)
        if recording is not None and not recording.works and not self._lost:
            self._lost = True
            complain("recording has failed; the command runs on")

    def _pass_on(self, command: Command) -> None:
        held, self._held = self._held, []
        for number in held:
            if number:  # 0: the terminal has sent it to the command already
                command.send(number)
        if self._recording is not None and not any(number in _ENDING for number in held):
            self._recording.resume()

    def _end_recording(self, signals: Signals | None, exit_code: int | None, number: int | None) -> None:
        """Finish what there is; whoever sends a signal now does not want to wait."""
        recording = self._recording
        if recording is None:
            return
        recording.end(exit_code, number)
        while recording.works:
            if signals is None:
                time.sleep(_TICK_S)
            elif any(came not in _AT_ONCE for came in signals.wait(_TICK_S)):
                complain("stopped before the recording was complete")
                break
        left = recording.remove()
        for line in summary.lines(recording, left):
            say(line)

    def _explain(self, failed: Any) -> None:
        """An error of ours in another thread: one line, and where it came from if asked."""
        complain(f"internal error: {failed.exc_type.__name__}: {failed.exc_value}")
        if self._options.verbose:
            traceback.print_exception(failed.exc_type, failed.exc_value, failed.exc_traceback, file=sys.stderr)

"""Open windows at the end: a signal waits for them, not for ever and not twice; those of orphans are waited for."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from tests.collect import raws, running
from tests.collect.pretender import flushes

PRETENDER = Path(__file__).with_name("pretender.py")


def _command(seconds: float, tmp_path: Path) -> list[str]:
    trace = raws.write(tmp_path / "raw.json", raws.usual(steps=4))
    return [sys.executable, str(PRETENDER), str(seconds), str(trace)]


def test_a_signal_waits_for_the_open_window(tmp_path: Path) -> None:
    command = ["sh", "-c", '"$@" & wait; wait', "sh", *_command(1.0, tmp_path)]
    with running.started(command, tmp_path / "out", "--grace", "100s") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(running.TIMEOUT_S) == -signal.SIGTERM
    (trace,) = running.read(tmp_path / "out").traces
    assert trace.entry["closed_by"] == "flush"
    assert trace.entry["phases"] == {"prefill": 1, "decode": 3}


def test_it_waits_no_longer_than_the_grace(tmp_path: Path) -> None:
    with running.started(_command(-1, tmp_path), tmp_path / "out", "--grace", "1s") as process:
        assert process.stdout is not None
        process.stdout.readline()
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(running.TIMEOUT_S) == -signal.SIGTERM
        assert time.monotonic() - began > 0.9


def test_a_second_signal_is_passed_on_at_once(short: Path, tmp_path: Path) -> None:
    given = {**running.environment(), "TMPDIR": str(short)}
    with running.started(_command(-1, tmp_path), tmp_path / "out", "--grace", "10m", env=given) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        (runtime,) = short.iterdir()
        running.until(lambda: flushes(runtime))
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(running.TIMEOUT_S) == -signal.SIGTERM


def test_the_window_of_an_orphan_is_waited_for(tmp_path: Path) -> None:
    command = [
        "sh",
        "-c",
        '"$@" > ready 2>&1 & while [ ! -s ready ]; do sleep 0.1; done',
        "sh",
        *_command(1.0, tmp_path),
    ]
    done = running.run(command, tmp_path / "out", "--grace", "100s", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (trace,) = running.read(tmp_path / "out").traces
    assert trace.entry["closed_by"] == "flush"


def test_an_orphan_that_does_not_end_is_told_and_left_alone(short: Path, tmp_path: Path) -> None:
    command = ["sh", "-c", '"$@" > ready 2>&1 & while [ ! -s ready ]; do sleep 0.1; done; echo $!', "sh",
               *_command(-1, tmp_path)]  # fmt: skip
    given = {**running.environment(), "TMPDIR": str(short)}
    with running.started(command, tmp_path / "out", "--grace", "1s", cwd=tmp_path, env=given) as process:
        out, told = process.communicate(timeout=running.TIMEOUT_S)
        orphan = int(out)
        os.kill(orphan, signal.SIGKILL)  # raises where it has gone
    assert len(list(short.iterdir())) == 1, "what it has loaded is still there"
    assert "1 process of the command with torch run on, unrecorded" in told

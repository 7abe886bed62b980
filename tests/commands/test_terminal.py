"""What is shown to somebody who watches a terminal, and to nobody else."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from traceanalyzer.__main__ import main
from traceanalyzer.commands.progress import Progress, one_line, say

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "samples" / "tiny-llama-cpu-batch4.json.gz"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(*arguments: str, cwd: Path, **environment: str) -> tuple[int, str]:
    """Run the command with a terminal for both outputs; returns its exit code and what it wrote."""
    ours, theirs = pty.openpty()
    kept = {key: value for key, value in os.environ.items() if key != "CI"}
    process = subprocess.Popen(
        [sys.executable, "-m", "traceanalyzer", *arguments],
        stdout=theirs,
        stderr=theirs,
        cwd=cwd,
        env={**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm", **environment},
    )
    os.close(theirs)
    text = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        text += piece
    os.close(ours)
    return process.wait(timeout=60), text.decode()


def test_progress_is_shown_and_cleared_and_the_summary_comes_with_files(tmp_path: Path) -> None:
    code, text = on_terminal("report", str(SAMPLE), "--json", "x.json", cwd=tmp_path)
    assert code == 0
    assert "\r\x1b[Kreading" in text
    _, after = text.rsplit("\x1b[K", 1)
    assert "prefill" in after
    assert "Traceback" not in text


def test_an_error_follows_a_cleared_line(tmp_path: Path) -> None:
    code, text = on_terminal("report", "missing.json", cwd=tmp_path)
    assert code == 2
    _, after = text.rsplit("\x1b[K", 1)
    assert after.startswith("traceanalyzer: ")
    assert after.count("\n") == 1


def test_quiet_is_quiet(tmp_path: Path) -> None:
    assert on_terminal("report", str(SAMPLE), "-q", "--markdown", "x.md", cwd=tmp_path) == (0, "")


def test_a_terminal_of_another_alphabet_is_no_error(tmp_path: Path) -> None:
    arguments = ("report", str(SAMPLE), "--markdown", "x.md")
    code, text = on_terminal(*arguments, cwd=tmp_path, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert code == 0
    assert text.isascii()
    assert "decode" in text.lower()


def test_progress_is_silent_where_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    shown = []
    for stream, quiet in ((io.StringIO(), False), (Terminal(), True), (Terminal(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with Progress(quiet) as progress:
            progress.show("reading\nx")
        shown.append(stream.getvalue())
    assert shown == ["", "", "\r\x1b[Kreading\\nx\r\x1b[K"]
    monkeypatch.setattr(sys, "stderr", None)
    with Progress(False) as progress:
        progress.show("to nobody")
    say("to nobody")


def test_a_message_is_one_line_whatever_a_file_is_called() -> None:
    assert one_line("a\nb\x1b[31m\u202e\u2028\udcffé") == "a\\nb\\x1b[31m\\u202e\\u2028\\udcffé"


def test_what_the_system_refuses_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(paths: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("traceanalyzer.trace.read_traces", refused)
    assert main(["report", str(SAMPLE), "--json", "-"]) == 2
    assert capsys.readouterr().err == "traceanalyzer: the system refuses: Input/output error\n"

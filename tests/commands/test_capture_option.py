"""`report --capture`: given, found beside the trace, and everything that is none."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from traceanalyzer import read_trace
from traceanalyzer.__main__ import main
from traceanalyzer.analysis import hta
from traceanalyzer.trace import captures
from traceanalyzer.trace.captures import captures_beside

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "tiny-llama-cpu.json.gz"
DECODE, CAPTURE = "mi300x-vllm-decode-full-graph.json.gz", "mi300x-vllm-graph-capture.json.gz"


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the figures of others beside, which take as long."""
    monkeypatch.setattr(hta, "ask", lambda _: (None, ()))


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["report", *arguments, "--json", "-"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["report", *arguments, "--json", "-"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.fullmatch(r"traceanalyzer: [^\n]{1,400}\n", shown.err)
    return shown.err


def test_a_capture_is_named_and_its_use_told(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "private"
    folder.mkdir()
    shutil.copy(traces / DECODE, folder)
    shutil.copy(traces / CAPTURE, folder / "elsewhere.json.gz")
    told = document(capsys, str(folder / DECODE), "--capture", str(folder / "elsewhere.json.gz"))
    assert told["options"]["captures"] == ["elsewhere.json.gz"]
    (note,) = [note for note in told["quality"] if note["code"] == "capture_used"]
    assert "elsewhere.json.gz" in note["message"]
    assert "private" not in json.dumps(told)
    assert "graph-match" in {kernel["work_source"] for kernel in told["kernels"]}


def test_a_capture_in_the_folder_is_found(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(traces / DECODE, tmp_path)
    shutil.copy(traces / CAPTURE, tmp_path)
    (tmp_path / "capture.json").write_text("{}")
    (tmp_path / "capture-of-nothing.json.gz").write_bytes(b"\x1f\x8b\x08\x00 is damaged")
    for number in range(5):
        (tmp_path / f"capture-{number}.json").write_text("[]")
    (tmp_path / "capture.txt").write_text("no trace")
    (tmp_path / "captures.json").mkdir()
    (tmp_path / "capture-gone.json").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "capture-pipe.json")
    told = document(capsys, str(tmp_path / DECODE))
    assert told["options"]["captures"] == []
    assert [note["code"] for note in told["quality"] if note["code"].startswith("capture")] == ["capture_used"]


def test_what_is_found_must_be_small_of_the_same_devices_and_asked_for(traces: Path, tmp_path: Path) -> None:
    shutil.copy(traces / DECODE, tmp_path)
    shutil.copy(traces / CAPTURE, tmp_path)
    given = tmp_path / DECODE
    replayed = read_trace(given)
    assert [one.source.name for one in captures_beside([given], [replayed])] == [CAPTURE]
    assert captures_beside(["-"], [replayed]) == ()
    assert captures_beside([tmp_path], [replayed]) == ()
    assert captures_beside([given, given], [replayed]) == ()
    assert captures_beside([given], [read_trace(SAMPLE)]) == ()
    shutil.copy(traces / "gp100-no-tensor-cores.json.gz", tmp_path / CAPTURE)  # of another card
    assert captures_beside([given], [replayed]) == ()
    shutil.copy(given, tmp_path / CAPTURE)
    assert captures_beside([given], [replayed]) == ()


def test_what_is_large_or_the_trace_itself_is_not_read(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "captured-decode.json.gz"
    shutil.copy(traces / DECODE, given)
    shutil.copy(traces / CAPTURE, tmp_path)
    (tmp_path / "capture-link.json.gz").symlink_to(given)
    read: list[str] = []
    monkeypatch.setattr(captures, "read_kineto", lambda path: read.append(path.name))
    monkeypatch.setattr(captures, "LARGEST", 1000)
    assert captures_beside([given], [read_trace(traces / DECODE)]) == ()
    assert read == []


def test_a_capture_without_use_is_refused_in_one_line(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decode = str(traces / DECODE)
    assert "does not exist" in refused(capsys, decode, "--capture", str(tmp_path / "missing.json"))
    assert "not a folder" in refused(capsys, decode, "--capture", str(tmp_path))
    assert "needs the name" in refused(capsys, decode, "--capture", "-")
    assert "needs the name" in refused(capsys, decode, "--capture", "")
    assert "cannot be the trace" in refused(capsys, decode, "--capture", decode)
    (tmp_path / "folder").mkdir()
    for copy in (tmp_path / "copy.json.gz", tmp_path / "folder" / "rank.json.gz"):
        shutil.copy(decode, copy)
    for path in (decode, str(tmp_path / "folder")):
        assert "copy.json.gz has the content of" in refused(capsys, path, "--capture", str(tmp_path / "copy.json.gz"))
    assert "holds no captured graph" in refused(capsys, decode, "--capture", str(traces / "a100-matmul.json"))


def test_a_finished_page_takes_no_capture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><html></html>")
    assert "finished page" in refused(capsys, str(page), "--capture", str(SAMPLE))

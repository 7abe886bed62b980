"""Requests that cannot be met: one line on standard error, exit code 2, nothing written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from traceanalyzer.__main__ import main
from traceanalyzer.report.document import content_id

SAMPLE = ROOT / "samples" / "tiny-llama-cpu.json.gz"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.fullmatch(r"traceanalyzer: [^\n]+\n", shown.err)
    return shown.err


@pytest.mark.parametrize("second", ["--json", "--markdown"])
def test_two_results_in_one_file(second: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "x.html"
    other = f"{tmp_path}/./x.html"
    assert "same file" in refused(["report", str(SAMPLE), "-o", str(place), second, other, "--force"], capsys)
    assert not place.exists()


def test_two_results_in_one_file_by_two_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, other = tmp_path / "x.html", tmp_path / "y.md"
    place.write_text("")
    other.hardlink_to(place)
    assert "same file" in refused(["report", str(SAMPLE), "-o", str(place), "--markdown", str(other)], capsys)
    assert main(["report", str(SAMPLE), "-q", "-o", os.devnull, "--json", os.devnull]) == 0


def test_kernels_whose_times_cannot_be_true_are_not_called_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = ('"ts": 1, "dur": -5', '"ts": 1, "dur": 1e30', '"ts": "x", "dur": 1', '"ts": 1e30, "dur": 1')
    for ending in times:
        event = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, ' + ending + "}"
        path = tmp_path / "t.json"
        path.write_text('{"schemaVersion": 1, "traceEvents": [' + ", ".join([event] * 3) + "]}")
        assert "holds 3 GPU kernels, none with times" in refused(["report", str(path)], capsys)


def test_an_empty_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert "empty" in refused(["report", ""], capsys)


def test_a_loop_of_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    refused(["report", str(loop)], capsys)
    refused(["report", str(SAMPLE), "-o", str(loop)], capsys)


@pytest.mark.parametrize(
    "option", [["--bandwidth-gbs", "1e-308"], ["--peak-tflops", "fp32=1e308"], ["--price", "1e300/h"]]
)
def test_figures_out_of_range(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "out of range" in refused(["report", str(SAMPLE), *option], capsys)


def test_a_page_that_was_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(SAMPLE), "-o", str(page), "--quiet"]) == 0
    text = page.read_text(encoding="utf-8")
    start = text.index('id="traceanalyzer-report"')
    page.write_text(text[:start] + text[start:].replace('"steps":11', '"steps":12', 1), encoding="utf-8")
    assert page.read_text(encoding="utf-8") != text
    assert "was changed" in refused(["report", str(page), "--json", "-"], capsys)


def test_a_page_longer_than_any_made_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(SAMPLE), "-o", str(page), "--quiet"]) == 0
    before, text = page.read_text(encoding="utf-8").split('id="traceanalyzer-report">', 1)
    block, after = text.split("</script>", 1)
    for section, most in {"steps": 2000, "kernels": 600, "ledger": 5000, "quality": 200}.items():
        data = json.loads(block)
        data[section] = [{}] * (most + 1)
        data["report_id"] = content_id(data)
        page.write_text(f'{before}id="traceanalyzer-report">{json.dumps(data)}</script>{after}', encoding="utf-8")
        assert f"more than {most} {section}" in refused(["report", str(page), "--json", "-"], capsys)
    data = json.loads(block) | {"steps_omitted": 10**400}
    data["report_id"] = content_id(data)
    page.write_text(f'{before}id="traceanalyzer-report">{json.dumps(data)}</script>{after}', encoding="utf-8")
    assert "damaged" in refused(["report", str(page), "--json", "-"], capsys)


@pytest.mark.parametrize("start", ["", "\ufeff", "<!-- saved from url=(0014)about:internet -->\n", "\n\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_page_that_other_programs_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], start: str, encoding: str
) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(SAMPLE), "-o", str(page), "--json", "made.json", "--quiet"]) == 0
    saved = tmp_path / "saved"
    saved.write_bytes((start + page.read_text(encoding="utf-8")).encode(encoding))
    assert main(["report", str(saved), "--json", "-"]) == 0
    assert capsys.readouterr().out == Path("made.json").read_text()


def test_standard_input_may_be_a_page_or_closed(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(SAMPLE), "-o", str(page), "--json", "made.json", "--quiet"]) == 0
    command = [sys.executable, "-m", "traceanalyzer", "report", "-", "--json", "-"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, input=page.read_bytes(), capture_output=True, env=environment, check=True)
    assert done.stdout.decode() == Path("made.json").read_text()
    for name, code in (("-", 2), (str(SAMPLE), 0)):
        command[4] = name
        shell = ["sh", "-c", 'exec "$@" <&-', "sh", *command]
        done = subprocess.run(shell, capture_output=True, env=environment, check=False)
        assert done.returncode == code
        said = "traceanalyzer: standard input is closed (pass the name of a trace file)\n" if code else ""
        assert done.stderr.decode() == said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_messages_that_cannot_be_said_are_no_other_failure(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "traceanalyzer", "report", str(tmp_path / "none.json")],
            stderr=full,
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
            env=os.environ,
            check=False,
        )
    assert done.returncode == 2

"""Requests that cannot be met: one line on standard error, exit code 2, nothing written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from traceanalyzer.__main__ import main

SAMPLE = ROOT / "samples" / "tiny-llama-cpu.json.gz"


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

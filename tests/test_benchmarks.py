"""The benchmark runs and its figures are those of its measurements. No time is asserted: machines differ."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def run() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmarks_run", ROOT / "benchmarks" / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_small_run_yields_ratios(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "benchmarks" / "run.py", "--without-hta", "--size", "1MB", "--rounds", "2"]
    done = subprocess.run([*command, "--work", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (tmp_path / "results.md").read_text(encoding="utf-8")
    number = r"([\d.]+)"
    for figure in ("reading, peak memory / JSON", "report / reading, wall time", "report, peak memory / JSON"):
        found = re.search(
            rf"^\| {re.escape(figure)} \| {number} \({number} to {number}\) \|", done.stdout, re.MULTILINE
        )
        assert found, figure
        middle, least, most = map(float, found.groups())
        assert 0 < least <= middle <= most
    assert "traceanalyzer --help" in done.stdout
    assert "HTA" not in done.stdout


def test_ratios_are_taken_within_each_round(run: ModuleType) -> None:
    hta = [run.Use(30.0, 28.0, 900, 29.0), run.Use(20.0, 19.0, 900, 18.0), run.Use(40.0, 36.0, 900, 39.0)]
    read = [run.Use(6.0, 7.0, 150, 5.8), run.Use(5.0, 5.0, 100, 4.5), run.Use(5.0, 6.0, 300, 4.0)]
    report = [run.Use(9.0, 9.0, 250, None), run.Use(10.0, 9.0, 200, None), run.Use(8.0, 9.0, 300, None)]
    table = run.ratio_table({"HTA": hta, "read": read, "report": report}, raw=1000)
    assert "| HTA's parser / reading, wall time | 5.00 (4.00 to 8.00) | at least 4 |" in table
    assert "| reading, peak memory / JSON | 0.15 (0.10 to 0.30) | at most 0.8 |" in table
    assert "| report / reading, wall time | 1.60 (1.50 to 2.00) | at most 2 |" in table


def test_a_process_is_charged_with_its_own_memory() -> None:
    """Asked in a small process, as the benchmark is one: a child is never charged with less than its parent has."""
    script = """
import run, sys
print(*(run.use_of([sys.executable, "-c", f"x = b'1' * {n}"]).peak_bytes for n in (1000, 300_000_000)))
"""
    folder = ROOT / "benchmarks"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=folder)
    small, large = map(int, done.stdout.split())
    assert small < 100e6
    assert 250e6 < large - small < 350e6


@pytest.mark.parametrize(("text", "bytes_"), [("500MB", 500_000_000), ("1.5 GB", 1_500_000_000), ("12", 12)])
def test_sizes(run: ModuleType, text: str, bytes_: int) -> None:
    assert run.size(text) == bytes_


def test_a_failing_program_says_why(run: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="no such thing"):
        run.use_of([sys.executable, "-c", "raise SystemExit('no such thing')"])


def test_the_servers_benchmark_measures_what_it_says(tmp_path: Path) -> None:
    """Small: a few uploads, a short list."""
    command = [sys.executable, ROOT / "benchmarks" / "server.py", "--uploads", "2", "--megabytes", "0.3"]
    command += ["--rows", "300", "--rounds", "2", "--json", tmp_path / "figures.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    uploads, lists = figures["uploads"], figures["lists"]
    assert 0.2 < uploads["mb"] < 0.4 and uploads["text_mb"] > 5 * uploads["mb"]
    assert 50 < uploads["idle_mb"] <= uploads["one_mb"] * 1.05
    assert uploads["memory_ratio"] == pytest.approx(uploads["many_mb"] / uploads["one_mb"])
    assert len(lists) == 7 and all(one["ratio"] == one["many_ms"] / one["few_ms"] > 0 for one in lists.values())
    assert "| 2 uploads / one |" in done.stdout and "| List with 300 traces |" in done.stdout

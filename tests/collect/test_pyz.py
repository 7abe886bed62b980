"""The one-file build: the same bytes each time, everything in it, and the same words as the command."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from tests.collect.running import ROOT
from traceanalyzer import __version__
from traceanalyzer.collect.version import tool_version

PYTHON = sys.executable
BUILD = ROOT / "scripts" / "collector.py"


def _build(target: Path) -> Path:
    subprocess.run([PYTHON, BUILD, target], check=True, capture_output=True, timeout=60)
    return target


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    one, two = _build(tmp_path / "a" / "collector.pyz"), _build(tmp_path / "b.pyz")
    assert one.read_bytes() == two.read_bytes()
    assert one.read_bytes().startswith(b"#!/usr/bin/env python3\n")


def test_all_of_the_collector_and_the_licences_are_in_it(tmp_path: Path) -> None:
    package = ROOT / "traceanalyzer" / "collect"
    expected = {f"collect/{path.relative_to(package).as_posix()}" for path in package.rglob("*.py")}
    with zipfile.ZipFile(_build(tmp_path / "collector.pyz")) as archive:
        names = set(archive.namelist())
        licence = archive.read("pynvml.LICENSE").decode()
        for name in expected:
            assert archive.read(name) == (package / name[len("collect/") :]).read_bytes()
    assert names - expected == {"LICENSE", "__main__.py", "collect/VERSION", "pynvml.LICENSE", "pynvml.py"}
    assert "NVIDIA" in licence
    assert "Redistribution" in licence


def test_it_takes_the_command_s_words_with_and_without_its_name(tmp_path: Path) -> None:
    target = _build(tmp_path / "collector.pyz")
    for words in (["--version"], ["collect", "--version"]):
        done = subprocess.run([target, *words], capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout == f"traceanalyzer {__version__}\n"
    assert tool_version() == __version__


def test_it_brings_its_own_binding_to_the_driver(tmp_path: Path) -> None:
    target = _build(tmp_path / "collector.pyz")
    code = f"import sys; sys.path.insert(0, {str(target)!r}); import pynvml; print(pynvml.__file__)"
    done = subprocess.run([PYTHON, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith(str(target))

"""The README's commands run, its help is the command's, and its links lead somewhere."""

from __future__ import annotations

import re
import shlex
import shutil
import types
from pathlib import Path

import pytest

from traceanalyzer.__main__ import main

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "samples" / "README.md"])


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_help_is_current(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("TERMINAL_WIDTH", raising=False)
    assert main(["report", "--help"]) == 0
    (shown,) = blocks("text")
    assert shown == "$ traceanalyzer report --help\n" + capsys.readouterr().out


def commands() -> list[str]:
    lines = "".join(blocks("sh")).splitlines()
    return [line.split(" # ")[0].split("| jq")[0].strip() for line in lines]


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("webbrowser.open", lambda url: True)
    shutil.copy(ROOT / "samples" / "tiny-llama-cpu-batch4.json.gz", "trace.json.gz")
    listed = commands()
    assert len(listed) == 13
    for command in listed:
        program, *arguments = shlex.split(command.split("&& ")[-1])
        assert program == "traceanalyzer"
        if any(name.startswith("rank") for name in arguments):
            continue  # two ranks need a trace of two ranks
        if arguments[0] == "serve" or "--watch" in arguments:
            continue  # they run for ever: tests/server/test_end_to_end.py
        if arguments[0] == "upload":
            arguments.append("--dry-run")
        assert main(arguments) == 0, (command, capsys.readouterr().err)
    assert {path.name for path in tmp_path.iterdir()} == {
        "trace.json.gz", "trace.traceanalyzer.html", "page.html", "ticket.md",
        "run.json.gz", "run.truth.json", "graph.json.gz", "graph.truth.json",
    }  # fmt: skip


def test_the_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "samples" / "tiny-llama-cpu-batch4.json.gz", "trace.json.gz")
    (example,) = (block for block in blocks("python") if "read_trace" in block)
    module = types.ModuleType("example")
    exec(compile(example, "README.md", "exec"), module.__dict__)
    assert module.page.lower().startswith("<!doctype html>")


def test_make_has_the_targets_that_are_named() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = "".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    named = set(re.findall(r"`make ([a-z]+)`|^    make ([a-z]+)", text, re.MULTILINE))
    assert {name for pair in named for name in pair if name} - targets == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files(path: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        if not link.startswith("https://"):
            assert (path.parent / link).exists(), link

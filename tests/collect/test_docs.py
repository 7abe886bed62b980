"""docs/collect.md names the options that there are, all of them, and its commands can be read."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from traceanalyzer.collect import check, counters, handler, options, shelf, windows
from traceanalyzer.collect.options import Options, parse

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "collect.md").read_text(encoding="utf-8")
OF_OTHERS = {
    "--profiler-config", "--enable-metrics", "--port", "--model-path", "--batch", "--nproc-per-node", "--from-file",
    "--fail-with-body",
}  # fmt: skip
"""Options of the commands that are recorded, and of those that bring the recording."""


def known() -> dict[str, bool]:
    """Every long option and whether it is the name that the help shows first."""
    parser = options._parser("1")
    return {name: True for action in parser._actions for name in action.option_strings if name.startswith("--")}


def commands() -> list[list[str]]:
    lines = "".join(re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)).splitlines()
    words = [shlex.split(line.split(" # ")[0]) for line in lines]
    return [line[2:] for line in words if line[:2] == ["traceanalyzer", "collect"]]


def test_every_option_that_is_named_exists() -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", TEXT))
    assert named - OF_OTHERS <= known().keys()
    assert named >= OF_OTHERS, "and none is excused that is not there"


def test_every_option_is_named() -> None:
    left_out = {"--help", "--version", "--quiet", "--verbose", "--output", "--grace", "--no-shapes"}
    assert known().keys() - left_out <= set(re.findall(r"--[a-z][a-z-]*", TEXT))


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_the_commands_can_be_read(words: list[str]) -> None:
    found = parse(words, "1")
    assert isinstance(found, Options)
    assert bool(found.command) != bool(found.attach)
    assert not [word for word in found.command if word in known() and word not in OF_OTHERS], "a word of ours behind --"


def test_every_refusal_of_the_endpoint_is_explained() -> None:
    """The status and the code of each, but for what no documented request meets: another path, method or a body."""
    table = TEXT.partition("| status | `error` |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ([0-9]{3}) \| (.*?) \|", table, re.MULTILINE)
    told = {(int(status), code) for status, codes in rows for code in re.findall(r"`(\w+)`", codes)}
    source = Path(handler.__file__).read_text(encoding="utf-8")
    refused = {(int(status), code) for status, code in re.findall(r'_refuse\((\d+), "(\w+)"', source)}
    asked = Path(windows.__file__).read_text(encoding="utf-8").partition("def _refusal(")[2].partition("def _able(")[0]
    refused |= {(handler._REFUSED.get(code, 503), code) for code in re.findall(r'Refused\(\s*"(\w+)"', asked)}
    assert told == {each for each in refused if each[0] not in (404, 405, 411, 413)}


def test_there_are_commands() -> None:
    assert len(commands()) >= 10


def test_the_containers_command_can_be_read() -> None:
    (command,) = re.findall(r"^ +command: (\[.*\])$", TEXT, re.MULTILINE)
    (arguments,) = re.findall(r"^ +args: (\[.*\])$", TEXT, re.MULTILINE)
    words = re.findall(r'"([^"]+)"', command)[2:] + re.findall(r'"([^"]+)"', arguments)
    found = parse(words, "1")
    assert found.command == ("vllm", "serve", "MODEL") and found.mode == "sample" and found.output == "/traces"


def test_the_check_that_is_shown_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (words,) = (words for words in commands() if "--check" in words)
    monkeypatch.chdir(tmp_path)
    assert words[-2] == "python"
    words[-2] = sys.executable
    assert check.run(parse(["--disk", "1MB", *words], "1")) == 0
    assert "recording would work here" in capsys.readouterr().out


def test_the_defaults_are_the_codes() -> None:
    full, sample = parse(["x"], "1"), parse(["--every", "5m", "x"], "1")
    assert (full.steps, sample.steps, sample.window_s) == (64, 32, 2.0)
    for number, phrase in ((64, "windows of {} steps"), (32, "{} steps or 2 s")):
        assert phrase.format(number) in TEXT.replace("\n", " ")
    assert (full.min_gap_s, full.max_per_day, full.keep_s, full.disk_bytes) == (60, 288, 7 * 86400, 2 * 10**9)
    assert "(288)" in TEXT and "(2 GB)" in TEXT and "(one minute)" in TEXT
    assert full.counters_s == 0.1 and "every 100 ms" in TEXT
    assert f"{counters.ROWS_PER_STRIDE:,}".replace(",", " ") in TEXT


def test_the_files_of_a_recording_have_the_names_that_are_shown() -> None:
    (block,) = re.findall(r"^```\n(traceanalyzer-recordings/.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    shown = [line.split()[0] for line in block.splitlines()]
    assert shown[0] == options.DEFAULT_OUTPUT + "/"
    assert shelf._FOLDER.match(shown[1].rstrip("/"))
    assert shown[2] == "recording.json"
    for name in shown[3:]:
        assert shelf._FILE.match(name.replace("PID", "47").replace("TIME", "20261130T045537.123Z")), name

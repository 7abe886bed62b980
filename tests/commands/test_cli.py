"""The command line: outputs, exit codes, one line per error, and how fast it says what it can do."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import traceanalyzer
from traceanalyzer.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "samples" / "tiny-llama-cpu-batch4.json.gz"
PAGE = "tiny-llama-cpu-batch4.traceanalyzer.html"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "traceanalyzer", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def assert_one_error(text: str) -> None:
    assert text.startswith("traceanalyzer: ")
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert "Traceback" not in text


def test_by_default_there_is_a_page_here_and_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(SAMPLE)]) == 0
    shown = capsys.readouterr()
    assert shown.err == f"wrote {PAGE}\n"
    assert "prefill" in shown.out
    assert [path.name for path in Path().iterdir()] == [PAGE]
    # Our own page may be replaced, without a word about force.
    assert main(["report", str(SAMPLE), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_only_what_is_asked_for_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(SAMPLE), "--json", "report.json", "--markdown", "ticket.md"]) == 0
    assert capsys.readouterr().out == ""
    assert {path.name for path in Path().iterdir()} == {"report.json", "ticket.md"}
    # All three again, over what is there.
    assert main(["report", str(SAMPLE), "--json", "report.json", "--markdown", "ticket.md", "-o", "p.html"]) == 0


def test_json_on_stdout_is_the_document_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(SAMPLE), "--json", "-", "--price", "2.5 EUR/h", "--peak-tflops", "fp32=1"]) == 0
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert shown.err == ""
    assert shown.out.isascii()
    assert document["schema_version"] == 1
    assert document["options"]["price_per_gpu_hour"] == 2.5
    assert document["options"]["currency"] == "EUR"
    assert document["options"]["peaks_tflops"] == {"fp32": 1.0}
    assert document["traces"][0]["name"] == SAMPLE.name


def test_a_page_made_earlier_gives_the_same_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(SAMPLE), "-o", "page.html", "--json", "direct.json", "--markdown", "direct.md"]) == 0
    Path("page.html").rename("renamed")
    assert main(["report", "renamed", "--json", "again.json", "--markdown", "again.md", "-o", "again.html"]) == 0
    assert Path("again.json").read_bytes() == Path("direct.json").read_bytes()
    assert Path("again.md").read_bytes() == Path("direct.md").read_bytes()
    assert Path("again.html").read_bytes() == Path("renamed").read_bytes()
    capsys.readouterr()
    assert main(["report", "renamed"]) == 0
    assert "prefill" in capsys.readouterr().out
    for option in (["--gpu", "h100-sxm-80gb"], ["--price", "2"], ["--bandwidth-gbs", "1"], ["--peak-tflops", "bf16=1"]):
        assert main(["report", "renamed", *option]) == 2
        assert_one_error(capsys.readouterr().err)
    assert main(["report", "renamed", str(SAMPLE)]) == 2
    assert_one_error(capsys.readouterr().err)


@pytest.mark.parametrize(
    "text",
    [
        "<!doctype html><title>A diary</title>",
        '<!doctype html><script type="application/json" id="traceanalyzer-report">{"schema_version": </script>',
        '<!doctype html><script type="application/json" id="traceanalyzer-report">{"schema_version": 999}</script>',
        '<!doctype html><script type="application/json" id="traceanalyzer-report">[]</script>',
        '<!doctype html><script type="application/json" id="traceanalyzer-report">' + "[" * 100_000 + "</script>",
        '<!doctype html><script id="traceanalyzer-report">',
        "<html>\0",
    ],
    ids=["diary", "cut", "later schema", "no object", "deep", "no type", "nul"],
)
def test_a_page_that_is_not_ours_is_said(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("other.html").write_text(text)
    assert main(["report", "other.html", "--json", "-"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert_one_error(shown.err)
    assert "other.html" in shown.err


def test_several_results_cannot_share_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(SAMPLE), "--json", "-", "--markdown", "-"]) == 2
    assert_one_error(capsys.readouterr().err)


def test_other_peoples_files_and_inputs_stay(capsys: pytest.CaptureFixture[str]) -> None:
    Path("diary.html").write_text("<!doctype html>dear diary")
    Path("trace.json.gz").write_bytes(SAMPLE.read_bytes())
    for output in ("diary.html", "trace.json.gz"):
        assert main(["report", "trace.json.gz", "-o", output]) == 2
        assert_one_error(capsys.readouterr().err)
    assert main(["report", "trace.json.gz", "-o", "trace.json.gz", "--force"]) == 2
    assert Path("diary.html").read_text() == "<!doctype html>dear diary"
    assert Path("trace.json.gz").read_bytes() == SAMPLE.read_bytes()
    assert main(["report", "trace.json.gz", "-o", "diary.html", "--force", "--quiet"]) == 0


BAD_USAGE = [
    ["nope"],
    ["report"],
    ["report", "--nope"],
    ["report", "x", "--json"],
    ["report", "x", "--gpu", "h101"],
    ["report", "x", "--gpu", ""],
    ["report", "x", "--bandwidth-gbs", "fast"],
    ["report", "x", "--bandwidth-gbs", "-1"],
    ["report", "x", "--price", "cheap"],
    ["report", "x", "--peak-tflops", "312"],
    ["report", "x", "--json", "--markdown"],
    ["report", "x", "-o", "."],
    ["report", "x", "-o", "no/folder/page.html"],
    ["report", "x", "-o", "-", "--open"],
    ["report", "missing.json"],
    ["report", "."],
    ["report", ""],
    ["report", "missing\nname\x1b[31m.json"],
    ["report", "\udcff\udcfe.json"],
    ["report", "\0"],
    ["gpus", "x"],
    ["gpus", "--json", "x"],
]


@pytest.mark.parametrize("arguments", BAD_USAGE, ids=lambda a: " ".join(a).encode("unicode_escape").decode())
def test_bad_usage_is_one_line_and_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert_one_error(shown.err)


WORDS = st.one_of(
    st.sampled_from(
        ["report", "gpus", "-", "--", "--json", "--markdown", "-o", "--gpu", "--price", "--peak-tflops", "--open=1",
         "-q", "--bandwidth-gbs", "--force", "--help", "--version", "h100-sxm-80gb", "2.5/h", "bf16=312", ".", "x.json"]
    ),
    st.text(st.characters(exclude_characters="/"), max_size=8),
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arguments=st.lists(WORDS, max_size=6))
def test_any_command_line_ends_in_a_result_or_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webbrowser.open", lambda url: True)
    monkeypatch.setattr(sys, "stdin", None)
    code = main(arguments)
    shown = capsys.readouterr()
    assert code in (0, 2)
    if code == 2:
        assert_one_error(shown.err)


def test_ctrl_c_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(paths: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("traceanalyzer.trace.read_traces", interrupted)
    assert main(["report", str(SAMPLE)]) == 130
    assert capsys.readouterr() == ("", "")
    assert not list(Path().iterdir())


def test_too_large_for_memory_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def too_large(paths: object) -> None:
        raise MemoryError

    monkeypatch.setattr("traceanalyzer.trace.read_traces", too_large)
    assert main(["report", str(SAMPLE)]) == 2
    assert_one_error(capsys.readouterr().err)


def test_open_shows_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert main(["report", str(SAMPLE), "--open", "--json", "x.json", "--quiet"]) == 0
    assert opened == [(tmp_path / PAGE).as_uri()]


def test_gpus_are_listed_as_text_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[0] == "h100-sxm-80gb" and " 989" in line for line in lines)
    assert main(["gpus", "--json"]) == 0
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)}
    assert len(rows) == len(lines) - 1
    assert rows["mi300x"]["bandwidth_gbs"] == 5300


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("run.pt.trace.json.gz", "run"),
        ("a.b.json.zst", "a.b"),
        ("trace.json", "trace"),
        (".json", ".json"),
        ("noext", "noext"),
        ("x.traceanalyzer.html", "x"),
        ("folder.d/", "folder.d"),
        ("-", "stdin"),
    ],
)
def test_the_page_is_named_after_the_first_path(name: str, page: str) -> None:
    from traceanalyzer.commands.report import default_name

    assert default_name([name, "other"]) == f"{page}.traceanalyzer.html"


def test_version_and_help_load_no_tables_and_no_charts() -> None:
    heavy = ("pandas", "numpy", "pyarrow", "torch", "vl_convert", "jinja2", "msgspec", "yaml", "hta")
    code = (
        "import sys; from traceanalyzer.__main__ import main; code = main(sys.argv[1:]); "
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    for arguments in (["--version"], ["--help"], ["report", "--help"], ["gpus", "--help"], []):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=60
        )
        assert (done.returncode, done.stderr.strip()) == (0, "[]"), arguments
        assert done.stdout


def test_help_answers_at_once() -> None:
    best = min(_seconds("--help") for _ in range(3))
    # 0.15 s where nothing else runs; a machine under load gets ten times that.
    assert best < 1.5


def _seconds(*arguments: str) -> float:
    start = time.perf_counter()
    assert run(*arguments).returncode == 0
    return time.perf_counter() - start


def test_the_version_is_the_package_s() -> None:
    assert run("--version").stdout == f"traceanalyzer {traceanalyzer.__version__}\n"


def test_standard_input_is_a_path() -> None:
    with SAMPLE.open("rb") as stream:
        done = subprocess.run(
            [sys.executable, "-m", "traceanalyzer", "report", "-", "--json", "-"],
            stdin=stream,
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["run"]["workload"] == "generation"


def test_the_same_input_gives_the_same_bytes_whatever_the_hash_seed_and_the_locale() -> None:
    outputs = []
    for number, environment in enumerate(
        ({"PYTHONHASHSEED": "1", "TZ": "UTC"}, {"PYTHONHASHSEED": "77", "TZ": "Asia/Tokyo", "LC_ALL": "C"})
    ):
        names = (f"{number}.html", f"{number}.json", f"{number}.md")
        done = run("report", str(SAMPLE), "-o", names[0], "--json", names[1], "--markdown", names[2], **environment)
        assert done.returncode == 0, done.stderr
        outputs.append([Path(name).read_bytes() for name in names])
    assert outputs[0] == outputs[1]


def ranks(folder: Path, *numbers: int) -> list[str]:
    """The sample as the ranks of a run of two processes."""
    trace = json.loads(gzip.decompress(SAMPLE.read_bytes()))
    paths = []
    for number in numbers:
        trace["distributedInfo"] = {"backend": "gloo", "rank": number, "world_size": 2}
        paths.append(folder / f"rank{number}.json.gz")
        paths[-1].write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    return [str(path) for path in paths]


def test_ranks_are_one_run_as_files_and_as_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    paths = ranks(folder, 0, 1)
    assert main(["report", *paths, "--json", "-", "--price", "1/h"]) == 0
    files = capsys.readouterr().out
    document = json.loads(files)
    assert [(device["rank"], device["kind"]) for device in document["devices"]] == [(0, "cpu"), (1, "cpu")]
    assert [trace["rank"] for trace in document["traces"]] == [0, 1]
    assert document["cost"]["gpus"] == 2
    assert main(["report", str(folder), "--json", "-", "--price", "1/h"]) == 0
    assert capsys.readouterr().out == files
    assert main(["report", str(folder), "-q"]) == 0
    assert Path("run.traceanalyzer.html").is_file()


def test_files_of_different_runs_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    other = SAMPLE.with_name("tiny-llama-cpu.json.gz")
    for paths in ([str(SAMPLE), str(other)], [str(SAMPLE), str(SAMPLE)]):
        assert main(["report", *paths]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert_one_error(shown.err)
        assert SAMPLE.name in shown.err
    assert not list(Path().iterdir())


@pytest.mark.parametrize("words", [["--help"], ["token", "--help"]])
def test_the_list_of_commands_has_whole_sentences(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(words) == 0
    listed = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    assert len(listed) >= 3
    assert [line for line in listed if line.endswith("...") or not line.endswith(".")] == []

"""`traceanalyzer simulate`: what it writes, what it says, and what it refuses in one line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from traceanalyzer import read_trace
from traceanalyzer.__main__ import main
from traceanalyzer.commands import values
from traceanalyzer.errors import InputError
from traceanalyzer.simulate.passes import passes
from traceanalyzer.simulate.presets import PRESETS

SMALL = ["simulate", "--model", "qwen2.5-0.5b", "--prompt", "32", "--output", "2"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def truth(name: str = "run") -> dict[str, object]:
    document: dict[str, object] = json.loads(Path(f"{name}.truth.json").read_text())
    return document


def test_the_trace_and_its_truth(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--batch", "2", "-o", "run.json.gz"]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("wrote run.json.gz and run.truth.json: 2 passes, ")
    assert sorted(path.name for path in Path().iterdir()) == ["run.json.gz", "run.truth.json"]
    assert len(read_trace("run.json.gz").annotations) == 4
    document = truth()
    assert document["model"] == "qwen2.5-0.5b"
    assert document["request"]["requests"] == 2  # type: ignore[index]
    assert main(["report", "run.json.gz", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_options_reach_the_scenario() -> None:
    arguments = [
        *SMALL, "--batch", "2", "--gpu", "h100-sxm-80gb", "--dtype", "fp16", "--weights", "fp8", "--kv", "fp8",
        "--in-turns", "--unfused", "--no-split-kv", "--sampler", "full", "--seed", "7", "--strip", "labels", "-q",
    ]  # fmt: skip
    assert main([*arguments, "-o", "run.json"]) == 0
    scenario: dict[str, object] = truth()["scenario"]  # type: ignore[assignment]
    wanted = {
        "batch": 2, "gpu": "h100-sxm-80gb", "dtype": "fp16", "weights": "fp8", "kv": "fp8", "together": False,
        "fused": False, "split_kv": False, "sampler": "full", "seed": 7, "prompt": 32, "output": 2, "labels": False,
    }  # fmt: skip
    assert {name: scenario[name] for name in wanted} == wanted


def test_graphs_captured_at_sizes() -> None:
    arguments = [*SMALL, "--batch", "3", "--mode", "graph", "-q", "-o", "run.json", "--force"]
    for options, sizes, padding in ((["--padded"], 51, 1), (["--capture-sizes", "1, 6"], 2, 3), ([], 0, 0)):
        assert main([*arguments, *options]) == 0
        document = truth()
        assert len(document["scenario"]["capture_sizes"]) == sizes  # type: ignore[index]
        assert document["steps"][1]["padded_tokens"] == padding  # type: ignore[index]


def test_a_prefix_that_is_in_the_cache() -> None:
    assert main([*SMALL, "--prefix-hit", "30", "-q", "-o", "run.json"]) == 0
    prefill = truth()["steps"][0]  # type: ignore[index]
    assert (prefill["phase"], prefill["tokens"], prefill["context_sum"]) == ("prefill", 2, 32)


def test_speculative_decoding() -> None:
    arguments = [*SMALL, "--output", "4", "--speculate", "2", "-q", "-o", "run.json", "--force"]
    for options, draft, accepted in (
        ([], 1, None),
        (["--draft", "3", "--accepted", "2"], 3, 2),
        (["--draft", "gpt2"], "gpt2", None),
    ):
        assert main([*arguments, *options]) == 0
        document = truth()
        scenario: dict[str, object] = document["scenario"]  # type: ignore[assignment]
        assert (scenario["speculate"], scenario["draft"], scenario["accepted"]) == (2, draft, accepted)
        assert [step["phase"] for step in document["steps"]][:4] == ["prefill", "draft", "draft", "decode"]  # type: ignore[attr-defined]


def test_planted_causes() -> None:
    arguments = ["--plant", "sync=0.5", "--plant", "scheduler=40@2", "-q", "-o", "run.json"]
    assert main([*SMALL, *arguments]) == 0
    assert truth()["planted"] == [
        {"kind": "sync", "ns": 500, "every": 1, "times": 2},
        {"kind": "scheduler", "ns": 40_000, "every": 2, "times": 1},
    ]  # fmt: skip


def test_a_preset_is_where_one_begins() -> None:
    assert main(["simulate", "--preset", "unfused", *SMALL[1:], "-q", "-o", "run.json.zst"]) == 0
    scenario: dict[str, object] = truth()["scenario"]  # type: ignore[assignment]
    assert (scenario["fused"], scenario["kv_cache"], scenario["attention"]) == (False, "cat", "math")
    assert (scenario["model"], scenario["output"]) == ("qwen2.5-0.5b", 2)
    assert len(PRESETS) == len({repr(one) for one in PRESETS.values()})
    for name, one in PRESETS.items():
        assert next(iter(passes(one))).tokens, name


def test_what_is_recorded() -> None:
    arguments = [*SMALL, "--stacks", "--memory-events", "--no-flows", "--strip", "shapes", "-q", "-o", "run.json"]
    assert main(arguments) == 0
    text = Path("run.json").read_text()
    assert '"python_function"' in text
    assert "[memory]" in text
    assert "ac2g" not in text
    assert "Input Dims" not in text


def test_a_size_and_a_cut_window() -> None:
    assert main([*SMALL, "--size", "2MB", "--cut-window", "-q", "-o", "run.json"]) == 0
    assert 2_000_000 <= Path("run.json").stat().st_size < 4_000_000
    steps: list[dict[str, object]] = truth()["steps"]  # type: ignore[assignment]
    assert (steps[0]["complete"], steps[-1]["complete"]) == (False, False)


def test_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--ranks", "2", "-o", "run.json"]) == 0
    assert capsys.readouterr().err.count("\n") == 2
    assert sorted(path.name for path in Path().iterdir()) == [
        "run-rank0.json", "run-rank0.truth.json", "run-rank1.json", "run-rank1.truth.json",
    ]  # fmt: skip
    assert main(["report", "run-rank0.json", "run-rank1.json", "--quiet"]) == 0


def test_files_are_not_replaced_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.json").write_text("mine")
    assert main([*SMALL, "-o", "run.json"]) == 2
    assert capsys.readouterr().err == "traceanalyzer: -o: run.json exists (--force replaces it)\n"
    assert Path("run.json").read_text() == "mine"
    Path("other.truth.json").write_text("mine")
    assert main([*SMALL, "-o", "other.json"]) == 2
    assert not Path("other.json").exists()
    assert main([*SMALL, "-o", "run.json", "--force", "-q"]) == 0
    assert len(read_trace("run.json").kernels)
    os.mkfifo("pipe.json")
    assert main([*SMALL, "-o", "pipe.json", "--force"]) == 2
    assert "no regular file" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "said"), [
    (["-o", "run.json", "--model", "lama-3-8b"], "unknown model 'lama-3-8b' (did you mean llama-3-8b"),
    (["-o", "run.json", "--gpu", "a100"], "unknown GPU id 'a100'"),
    (["-o", "run.json", "--batch", "0"], "batch is 0"),
    (["-o", "run.json", "--batch", "99999999999999999999999"], "batch is 9999"),
    (["-o", "run.json", "--output", "-3"], "output is -3"),
    (["-o", "run.json", "--prompt", "x"], "--prompt"),
    (["-o", "run.json", "--mode", "fast"], "mode is 'fast' (choose from eager, graph, piecewise, full-and-piecewise)"),
    (["-o", "run.json", "--capture-sizes", "1,x"], "'1,x' is no list of numbers"),
    (["-o", "run.json", "--capture-sizes", "1,2"], "without graphs nothing is captured"),
    (["-o", "run.json", "--capture-sizes", "2,1", "--mode", "graph"], "no ascending whole numbers"),
    (["-o", "run.json", "--capture-sizes", "1", "--padded"], "both say what is captured"),
    (["-o", "run.json", "--plant", "rain=4"], "unknown cause 'rain' (choose from launch, graph-launch, sync"),
    (["-o", "run.json", "--speculate", "2", "--draft", "lama"], "unknown model 'lama'"),
    (["-o", "run.json", "--plant", "sync"], "'sync' is no CAUSE=US"),
    (["-o", "run.json", "--plant", "rank=3"], "one rank waits for no other (use --ranks 2)"),
    (["-o", "run.json", "--weights", "int3"], "weights is 'int3' (choose from same, fp8"),
    (["-o", "run.json", "--strip", "kernels"], "unknown part 'kernels' (choose from shapes, labels, ops)"),
    (["-o", "run.json", "--preset", "singel"], "unknown preset 'singel' (did you mean single"),
    (["-o", "run.json", "--size", "big"], "'big' is no size"),
    (["-o", "run.json", "--size", "9e99GB"], "out of range"),
    (["-o", "run.json", "--ranks", "3"], "3 ranks"),
    (["-o", "run.txt"], "does not end in .json, .json.gz, .json.zst"),
    (["-o", "-"], "does not end in"),
    (["-o", "no/run.json"], "the folder no does not exist"),
    (["-o", "a\0.json"], "NUL"),
    ([], "-o"),
])  # fmt: skip
def test_one_line_for_what_cannot_be(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("traceanalyzer: ")
    assert shown.err.count("\n") == 1
    assert said in shown.err
    assert not list(Path().iterdir())


def test_sizes_by_hand() -> None:
    assert [values.size("--size", text) for text in ("1GB", "500 mb", "64MiB", "2e3", "7", "1.5kB")] == [
        10**9, 5 * 10**8, 64 << 20, 2_000, 7, 1_500,
    ]  # fmt: skip
    for text in ("", "GB", "-1GB", "1TB", "1 ib", "nan", "0", "1e99999"):
        with pytest.raises(InputError, match="--size"):
            values.size("--size", text)

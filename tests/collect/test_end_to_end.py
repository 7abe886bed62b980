"""From the command to the figures: `collect` around a tiny generation of known size, then `report` on what it left.

The counts are exact because they follow from how generation works: one forward pass reads all prompts and gives the
first token, one more gives each further token.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from traceanalyzer import analyze, read_traces

SCRIPT = """
import sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM

batch, prompt, new, times, cache = (int(word) if word.isdigit() else word for word in sys.argv[1:])
torch.manual_seed(0)
torch.set_num_threads(1)
config = LlamaConfig(
    hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=128, eos_token_id=None, pad_token_id=0, bos_token_id=None,
)
model = LlamaForCausalLM(config).eval()
ids = torch.randint(1, 100, (batch, prompt))
how = {} if cache == "dynamic" else {"cache_implementation": cache, "disable_compile": True}
for _ in range(times):
    found = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False, **how)
    assert found.shape == (batch, prompt + new)
"""


@dataclass(frozen=True)
class Run:
    """What a generation is asked for."""

    batch: int
    prompt: int
    new: int
    times: int
    cache: str

    @property
    def steps(self) -> int:
        return self.times * self.new


RUNS = [
    Run(1, 7, 70, 1, "static"),
    Run(4, 5, 140, 1, "dynamic"),
    Run(1, 6, 12, 2, "dynamic"),
    Run(4, 9, 10, 2, "static"),
]


@pytest.fixture(
    scope="module", params=RUNS, ids=lambda run: f"{run.batch}x{run.prompt}+{run.new}x{run.times}-{run.cache}"
)
def recorded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Run, Path, dict[str, Any]]:
    """The run, its recording, and the report on it."""
    run: Run = request.param
    folder = tmp_path_factory.mktemp("end-to-end")
    (folder / "generate.py").write_text(SCRIPT, encoding="utf-8")
    words = [str(word) for word in (run.batch, run.prompt, run.new, run.times, run.cache)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    collect = [
        sys.executable,
        "-m",
        "traceanalyzer",
        "collect",
        "-o",
        "spool",
        "--quiet",
        "--",
        sys.executable,
        "generate.py",
        *words,
    ]
    subprocess.run(collect, cwd=folder, env=environment, check=True, timeout=120, capture_output=True)
    (left,) = (folder / "spool").glob("*/recording.json")
    return run, left.parent, analyze(read_traces([folder / "spool"])).model_dump(mode="json")


def phases(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {phase["phase"]: phase for phase in report["phases"] if phase["steps"]}


def test_the_report_counts_exactly_what_ran(recorded: tuple[Run, Path, dict[str, Any]]) -> None:
    run, _, report = recorded
    found = phases(report)
    assert set(found) == {"prefill", "decode"}
    assert found["prefill"]["steps"] == run.times
    assert found["prefill"]["prefill_tokens"] == run.times * run.batch * run.prompt
    assert found["decode"]["steps"] == run.times * (run.new - 1)
    assert found["decode"]["decode_tokens"] == found["decode"]["output_tokens"] == run.times * run.batch * (run.new - 1)
    assert all(phase["sequences_mean"] == run.batch for phase in found.values())
    assert report["run"]["workload"] == "generation"
    assert report["request"]["requests"] == run.times * run.batch
    alone = run.times == 1
    lengths = (report["request"]["input_tokens"], report["request"]["output_tokens"])
    assert lengths == ((run.prompt, run.new) if alone else (None, None))


def test_each_step_says_what_it_did_and_that_the_collector_saw_it(recorded: tuple[Run, Path, dict[str, Any]]) -> None:
    run, _, report = recorded
    assert len(report["steps"]) == run.steps
    for place, step in enumerate(report["steps"]):
        made = place % run.new
        expected = "decode" if made else "prefill"
        assert step["phase"] == expected
        assert step["evidence"][:2] == ["collector", f"annotation ta.step[{expected}]"]
        assert step["confidence"] == 0.99
        assert step["complete"]
        assert step["tokens"] == run.batch * (1 if made else run.prompt)
        assert step["context_sum"] == run.batch * (run.prompt + made)
        assert step["query_context_sum"] == step["tokens"] * (run.prompt + made)


def test_windows_are_joined_and_the_time_between_them_counts_nowhere(
    recorded: tuple[Run, Path, dict[str, Any]],
) -> None:
    run, folder, report = recorded
    expected = -(-run.steps // 64)  # windows of 64 steps
    assert report["recording"]["windows_read"] == report["recording"]["windows_total"] == expected
    assert [trace["name"] for trace in report["traces"]] == sorted(
        path.name for path in folder.glob("*.pt.trace.json.gz")
    )
    assert report["recording"]["mode"] == "full" and report["recording"]["recorder"] == "python"
    assert not report["recording"]["dropped"] and not report["recording"]["ranks_missing"]
    assert sum(row["us"] for row in report["ledger"]) == pytest.approx(report["devices"][0]["span_us"])
    assert sum(phase["time_share"] for phase in report["phases"]) == pytest.approx(1.0)
    artefact = [row for row in report["ledger"] if row["bucket"] == "idle_artefact"]
    assert {row["phase"] for row in artefact} == ({"other"} if expected > 1 else set())
    decode = phases(report)["decode"]
    by_rate = decode["output_tokens"] / decode["tokens_per_s"] * 1e6
    assert by_rate == pytest.approx(decode["duration_us"])
    without = [step["index"] for step in report["steps"] if step["period_us"] is None]
    assert without == sorted({*range(63, run.steps, 64), run.steps - 1})


def test_what_ran_is_named(recorded: tuple[Run, Path, dict[str, Any]]) -> None:
    run, _, report = recorded
    model = report["run"]["model"]
    assert report["run"]["engine"] == "Transformers" and report["run"]["engine_version"]
    assert (model["layers"], model["hidden"], model["heads"], model["kv_heads"], model["vocab"]) == (2, 32, 4, 2, 128)
    per_token = 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads, head size, bytes
    assert report["memory"]["kv_bytes_per_token"] == per_token
    assert report["memory"]["weight_bytes"] == 4 * model["parameters"]
    assert report["steplog"]["steps"] == len(report["steps"]) == run.steps


def test_windows_given_by_name_say_the_same(recorded: tuple[Run, Path, dict[str, Any]]) -> None:
    _, folder, report = recorded
    names = sorted(str(path) for path in folder.glob("*.pt.trace.json.gz"))
    again = analyze(read_traces(names[::-1])).model_dump(mode="json")
    assert again["steps"] == report["steps"]
    assert again["ledger"] == report["ledger"]

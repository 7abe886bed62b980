"""The files: what the reader finds in them, every variant and suffix, the size asked for, ranks, and refusals."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from tests.simulate.programs import a_pass, generation, kernel, op, source
from traceanalyzer import read_trace, read_traces
from traceanalyzer.__main__ import main
from traceanalyzer.errors import InputError, UnknownGPUError
from traceanalyzer.simulate.checks import check
from traceanalyzer.simulate.fields import Fields
from traceanalyzer.simulate.header import head
from traceanalyzer.simulate.program import Copy, Scalar, Tensor
from traceanalyzer.simulate.scenario import Costs, Plant, Scenario
from traceanalyzer.simulate.variants import Variant
from traceanalyzer.simulate.write import ORIGIN_NS, RANK_SKEW_NS, simulate
from traceanalyzer.trace.tables import GPU_USER, KERNEL, MEMCPY, USER, Trace

RUN = Scenario(output=4)


def write(path: Path, scenario: Scenario = RUN, mode: str = "eager", **options: Any) -> tuple[Trace, dict[str, Any]]:
    """The trace as read, and its truth."""
    (written,) = simulate(scenario, path, generation(scenario.output, mode=mode), **options)
    return read_trace(path), json.loads(written.truth.read_text())


def union_ns(trace: Trace) -> int:
    """Length of the union of the device's activity, second by second the plain way."""
    covered = reach = 0
    for start, ns in sorted(
        zip(trace.kernels["start_ns"].tolist(), trace.kernels["duration_ns"].tolist(), strict=True)
    ):
        covered += max(0, start + ns - max(start, reach))
        reach = max(reach, start + ns)
    return covered


def names(trace: Trace, table: str) -> list[str]:
    return [trace.text(code) for code in getattr(trace, table)["name"]]


def test_the_reader_finds_what_was_put_in(tmp_path: Path) -> None:
    trace, truth = write(tmp_path / "run.json")
    assert not trace.quality
    kernels = trace.kernels[trace.kernels["kind"] == KERNEL]
    # Four passes of three layers with two kernels, and one copy each.
    assert len(kernels) == truth["span"]["kernels"] == 24
    assert (trace.kernels["kind"] == MEMCPY).sum() == truth["span"]["copies"] == 4
    assert union_ns(trace) == truth["span"]["busy_ns"]
    ends = trace.kernels["start_ns"] + trace.kernels["duration_ns"]
    assert int(trace.kernels["start_ns"].min()) == truth["span"]["start_ns"]
    assert int(ends.max()) == truth["span"]["end_ns"]
    assert sum(row["ns"] for row in truth["ledger"]) == truth["span"]["span_ns"]
    assert sum(row["count"] for row in truth["kernels"]) == 24
    assert trace.metadata.rank is None
    assert trace.metadata.recorded_at_ns is None
    assert trace.metadata.devices[0].name == "NVIDIA A100-SXM4-80GB"


def test_every_kernel_has_its_call_and_its_op(tmp_path: Path) -> None:
    trace, _ = write(tmp_path / "run.json")
    calls = trace.launches.set_index("correlation")
    for row in trace.kernels.itertuples():
        call = calls.loc[row.correlation]
        assert call["start_ns"] + call["duration_ns"] <= row.start_ns
        assert row.external_id == call["external_id"] > 0
        (op_row,) = trace.ops.index[trace.ops["external_id"] == row.external_id]
        at = trace.ops.loc[op_row]
        assert at["start_ns"] <= call["start_ns"]
        assert call["start_ns"] + call["duration_ns"] <= at["start_ns"] + at["duration_ns"]
    assert names(trace, "ops").count("aten::_local_scalar_dense") == 4
    assert sorted(set(names(trace, "launches"))) == ["cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize"]


def test_labels_say_what_a_pass_does(tmp_path: Path) -> None:
    trace, truth = write(tmp_path / "run.json")
    assert names(trace, "annotations")[:2] == ["ta.step[prefill n=0 tokens=64 seqs=1 ctx=64 qk=4096]"] * 2
    assert "ta.step[decode n=3 tokens=1 seqs=1 ctx=67 qk=67]" in names(trace, "annotations")
    kinds = trace.annotations["kind"].to_numpy()
    assert ((kinds == USER).sum(), (kinds == GPU_USER).sum()) == (4, 4)
    on_card = trace.annotations[kinds == GPU_USER].sort_values("start_ns")
    assert on_card["start_ns"].tolist() == [step["start_ns"] for step in truth["steps"]]
    mixed = a_pass(op(kernel(5)), phase="mixed", tokens=9, prefill_tokens=8, decode_tokens=1, prefill_sequences=1,
                   decode_sequences=1, sequences=2)  # fmt: skip
    simulate(RUN, tmp_path / "mixed.json", source(mixed))
    assert (
        "seqs=2 ctx=10 qk=90 prefill_tokens=8 decode_tokens=1 prefill_seqs=1 decode_seqs=1]"
        in (tmp_path / "mixed.json").read_text()
    )


def test_a_graph_has_one_call_and_numbered_nodes(tmp_path: Path) -> None:
    trace, _ = write(tmp_path / "run.json", mode="graph")
    in_graph = trace.kernels[trace.kernels["graph_id"] > 0]
    assert len(in_graph) == 18
    assert in_graph["graph_id"].nunique() == 1
    assert in_graph["graph_node_id"].nunique() == 6
    assert in_graph["correlation"].nunique() == names(trace, "launches").count("cudaGraphLaunch") == 3
    assert (in_graph["external_id"] < 0).all()


@pytest.mark.parametrize(("variant", "absent"), [
    (Variant(shapes=False), '"Input Dims"'), (Variant(labels=False), "ta.step["), (Variant(ops=False), '"cpu_op"'),
    (Variant(flows=False), '"ac2g"'), (Variant(), '"python_function"'), (Variant(), "[memory]"),
])  # fmt: skip
def test_what_is_left_out(tmp_path: Path, variant: Variant, absent: str) -> None:
    trace, truth = write(tmp_path / "run.json", variant=variant)
    assert absent not in (tmp_path / "run.json").read_text()
    assert not trace.quality
    assert union_ns(trace) == truth["span"]["busy_ns"]
    if not variant.ops:
        assert (trace.kernels["external_id"] < 0).all()
    # What is recorded changes nothing of what happened.
    _, plain = write(tmp_path / "plain.json")
    assert {**truth, "trace": 0, "scenario": 0} == {**plain, "trace": 0, "scenario": 0}


def test_scenarios_without_labels(tmp_path: Path) -> None:
    write(tmp_path / "run.json", replace(RUN, labels=False))
    assert "ta.step[" not in (tmp_path / "run.json").read_text()


def test_stacks_and_memory(tmp_path: Path) -> None:
    trace, _ = write(tmp_path / "run.json", variant=Variant(stacks=True, memory=True))
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    frames = [event for event in events if event.get("cat") == "python_function"]
    known = {frame["args"]["Python id"]: frame for frame in frames}
    assert len(known) == len(frames) == 4 * (1 + 3 * 3)
    for frame in frames:
        parent = known.get(frame["args"]["Python parent id"])
        assert (
            parent is None or parent["ts"] <= frame["ts"] <= frame["ts"] + frame["dur"] <= parent["ts"] + parent["dur"]
        )
    moves = [event["args"] for event in events if event.get("name") == "[memory]"]
    held = 8_030_261_248 * 2  # parameters of Llama 3.1 8B in bf16
    assert held <= moves[0]["Total Allocated"] < held + 2048
    for before, after in pairwise(moves):
        assert after["Total Allocated"] - before["Total Allocated"] == after["Bytes"]
    assert trace.metadata.with_stack


def test_a_window_that_cuts_the_first_and_the_last_pass(tmp_path: Path) -> None:
    trace, truth = write(tmp_path / "run.json", variant=Variant(cut=True))
    assert [step["complete"] for step in truth["steps"]] == [False, True, True, False]
    assert union_ns(trace) == truth["span"]["busy_ns"]
    assert len(trace.kernels) == truth["span"]["kernels"] + truth["span"]["copies"]
    assert len(trace.kernels) < 28
    assert sum(row["ns"] for row in truth["ledger"]) == truth["span"]["span_ns"]
    other = {row["bucket"]: row["ns"] for row in truth["ledger"] if row["phase"] == "other"}
    # The gaps before the first and after the last whole pass lie outside, as do the kernels of the cut ones.
    assert other["idle_host"] == 2 * 50_000
    assert truth["phases"]["decode"]["steps"] == 2
    assert truth["request"]["ttft_ns_p50"] is None
    (single,) = simulate(RUN, tmp_path / "one.json", generation(1), variant=Variant(cut=True))
    assert json.loads(single.truth.read_text())["steps"][0]["complete"] is False


def test_every_suffix_packs_the_same_text(tmp_path: Path) -> None:
    for suffix in (".json", ".json.gz", ".json.zst"):
        simulate(RUN, tmp_path / f"run{suffix}", generation())
    plain = (tmp_path / "run.json").read_bytes().replace(b"run.json", b"")
    gz = gzip.decompress((tmp_path / "run.json.gz").read_bytes())
    zst = zstandard.ZstdDecompressor().stream_reader((tmp_path / "run.json.zst").read_bytes()).read()
    assert plain == gz.replace(b"run.json.gz", b"") == zst.replace(b"run.json.zst", b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "run.json", "run.json.gz", "run.json.zst", "run.truth.json",
    ]  # fmt: skip


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".json.zst"])
def test_the_same_scenario_gives_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    written = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (one,) = simulate(
            RUN, tmp_path / folder / f"run{suffix}", generation(), variant=Variant(stacks=True, memory=True)
        )
        written.append((one.trace.read_bytes(), one.truth.read_bytes()))
    assert written[0] == written[1]
    (other,) = simulate(replace(RUN, seed=1), tmp_path / f"run{suffix}", generation())
    assert other.trace.read_bytes() != written[0][0]  # the id of the trace follows from the scenario


def test_options_that_came_later_change_no_earlier_identity() -> None:
    def identity(scenario: Scenario) -> str:
        gpu, _ = check(scenario)
        found: str = json.loads(head(scenario, gpu, 0, Variant()) + "]}")["trace_id"]
        return found

    assert identity(RUN) == "D31719111E008F0E3AFBFDDAA4BA7EFA"  # as it was before there were any
    later = [replace(RUN, prefix=1), replace(RUN, plants=(Plant("sync", 1),)), replace(RUN, speculate=1)]
    assert len({identity(one) for one in (RUN, *later)}) == 4


def test_more_requests_until_the_size_is_reached(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    (one,) = simulate(RUN, tmp_path / "run.json", generation(), size=400_000, watch=lambda *now: seen.append(now))
    assert one.size == (tmp_path / "run.json").stat().st_size
    once = simulate(RUN, tmp_path / "once.json", generation())[0].size
    assert once < 400_000 <= one.size < 400_000 + once
    assert [passes for passes, _ in seen] == list(range(1, one.passes + 1))
    truth = json.loads(one.truth.read_text())
    assert truth["request"]["requests"] == one.passes // 4
    assert [step["index"] for step in truth["steps"]] == list(range(one.passes))
    trace = read_trace(tmp_path / "run.json")
    assert len(trace.kernels) == truth["span"]["kernels"] + truth["span"]["copies"]
    # Every number stays unique over the rounds.
    assert trace.launches["correlation"].is_unique
    assert trace.ops["external_id"].is_unique
    # A size below one run ends it early.
    assert simulate(RUN, tmp_path / "short.json", generation(), size=1)[0].passes == 1


def test_ranks_have_a_file_each_and_end_communication_together(tmp_path: Path) -> None:
    reduce = kernel(4_000, name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL()", role="comm",
                    flops=None, bytes=None, communication=True)  # fmt: skip
    passes = [a_pass(op(kernel(9_000)), op(reduce), op(kernel(2_000)), sync_after=True, host_after_ns=1_000)] * 3
    written = simulate(replace(RUN, ranks=2), tmp_path / "run.json.gz", source(*passes))
    assert [one.trace.name for one in written] == ["run-rank0.json.gz", "run-rank1.json.gz"]
    assert [one.truth.name for one in written] == ["run-rank0.truth.json", "run-rank1.truth.json"]
    traces = read_traces([tmp_path])
    assert [(trace.metadata.rank, trace.metadata.world_size) for trace in traces] == [(0, 2), (1, 2)]
    assert [set(trace.kernels["device"]) for trace in traces] == [{0}, {1}]
    ends = []
    for trace in traces:
        comm = trace.kernels[[name.startswith("nccl") for name in names(trace, "kernels")]]
        ends.append((comm["start_ns"] + comm["duration_ns"]).tolist())
    assert ends[0] == ends[1]
    truths = [json.loads(one.truth.read_text()) for one in written]
    # Rank 1's host begins later; rank 0 waits for it once, then both are in step.
    assert [truth["span"]["communication_wait_ns"] for truth in truths] == [RANK_SKEW_NS, 0]
    assert truths[1]["span"]["start_ns"] - truths[0]["span"]["start_ns"] == RANK_SKEW_NS
    assert [truth["rank"] for truth in truths] == [0, 1]


def test_copies_and_fills_of_every_kind(tmp_path: Path) -> None:
    made = [Copy("HtoD", 64, 10), Copy("HtoD", 64, 10, blocking=True), Copy("DtoD", 64, 10), Copy("Memset", 64, 10)]
    simulate(RUN, tmp_path / "run.json", source(a_pass(*(op(one) for one in made))))
    trace = read_trace(tmp_path / "run.json")
    assert names(trace, "kernels") == [
        "Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoD (Device -> Device)",
        "Memset (Device)",
    ]  # fmt: skip
    assert trace.kernels["bytes"].tolist() == [64] * 4
    assert names(trace, "launches").count("cudaMemsetAsync") == 1


def test_arguments_as_a_profiler_records_them() -> None:
    from traceanalyzer.catalog import gpus

    text = Fields(gpus.find("a100-sxm4-80gb")).arguments(
        (Tensor((2, 3), "float"), Tensor((2, 3), "c10::Half", (1, 2)), Scalar("-1"), Scalar("[1, 2]", "ScalarList"),
         (Tensor((2,), "float"), Tensor((5, 0, 4), "float")), Tensor((), "double"), Scalar('"', "")),
    )  # fmt: skip
    assert json.loads("{" + text.rstrip(", ") + "}") == {
        "Concrete Inputs": ["", "", "-1", "[1, 2]", "", "", '"'],
        "Input type": ["float", "c10::Half", "Scalar", "ScalarList", "TensorList", "double", ""],
        "Input Strides": [[3, 1], [1, 2], [], [], [[1], [4, 4, 1]], [], []],
        "Input Dims": [[2, 3], [2, 3], [], [], [[2], [5, 0, 4]], [], []],
    }


def test_the_launch_configuration_and_the_fill(tmp_path: Path) -> None:
    work = kernel(5, grid=(54, 2, 1), block=(128, 1, 1), registers=128)
    simulate(RUN, tmp_path / "run.json", source(a_pass(op(work))))
    (event,) = [e for e in json.loads((tmp_path / "run.json").read_text())["traceEvents"] if e.get("cat") == "kernel"]
    # 108 blocks on 108 SMs, four warps each; 65,536 registers hold 4 blocks of 128 threads with 128 registers.
    assert event["args"]["blocks per SM"] == 1.0
    assert event["args"]["warps per SM"] == 4.0
    assert event["args"]["est. achieved occupancy %"] == 6
    assert list(event) == ["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"]


def test_times_are_exact_to_the_nanosecond(tmp_path: Path) -> None:
    simulate(replace(RUN, costs=Costs(launch_call_ns=1, launch_latency_ns=1)), tmp_path / "run.json",
             source(a_pass(op(kernel(7, ), host=3))))  # fmt: skip
    assert '"ts": 1000000000.005, "dur": 0.007,' in (tmp_path / "run.json").read_text()
    trace = read_trace(tmp_path / "run.json")
    assert trace.kernels["start_ns"].tolist() == [ORIGIN_NS + 5]
    assert trace.kernels["duration_ns"].to_numpy(np.int64).tolist() == [7]


def test_the_block_says_that_nothing_ran(tmp_path: Path) -> None:
    trace, _ = write(tmp_path / "run.json", replace(RUN, weights="int4", model="qwen3-30b-a3b"))
    block: Any = trace.metadata.collector
    assert block["window"]["simulated"] is True
    assert block["window"]["steps"] == 4
    assert block["model"]["name"] == "Qwen/Qwen3-30B-A3B"
    assert (block["model"]["experts"], block["model"]["experts_per_token"]) == (128, 8)
    assert block["model"]["quantization"] == "int4"
    assert block["gpu"]["id"] == "a100-sxm4-80gb"


@pytest.mark.parametrize(("change", "said"), [
    ({"batch": 0}, "batch is 0"), ({"batch": -(10**30)}, "batch is -1000000"), ({"prompt": 10**30}, "prompt is 1000"),
    ({"output": 0}, "output is 0"), ({"output": 10**9}, "output is 1000000000"), ({"ranks": 65}, "ranks is 65"),
    ({"chunk": 0}, "chunk is 0"), ({"seed": -1}, "seed is -1"), ({"batch": True}, "batch is True"),
    ({"batch": 4096, "prompt": 1 << 20}, "batch x (prompt + output)"), ({"batch": 1.5}, "batch is 1.5"),
    ({"costs": Costs(matrix_compute=0.0)}, "costs.matrix_compute"),
    ({"costs": Costs(launch_call_ns=-1)}, "costs.launch"),
    ({"costs": Costs(link_gbs=float("nan"))}, "costs.link_gbs is nan"), ({"gpu": "mi300x"}, "NVIDIA"),
    ({"model": "lama-3-8b"}, "did you mean"), ({"weights": "int3"}, "choose from same, fp8"),
])  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        simulate(replace(RUN, **change), tmp_path / "run.json", generation())
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 200
    assert not list(tmp_path.iterdir())


def test_unknown_gpus_and_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownGPUError, match="did you mean"):
        simulate(replace(RUN, gpu="a100-sxm4-80g"), tmp_path / "run.json", generation())
    for name in ("run.txt", ".json", "run", "run.json.bz2"):
        with pytest.raises(InputError, match="does not end in"):
            simulate(RUN, tmp_path / name, generation())
    with pytest.raises(InputError, match=r"cannot write run\.json: No such file"):
        simulate(RUN, tmp_path / "absent" / "run.json", generation())
    with pytest.raises(InputError, match="nothing runs"):
        simulate(RUN, tmp_path / "run.json", source())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".json.zst"])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"run{suffix}"
    path.write_text("old")

    def failing(scenario: Scenario, rank: int) -> Any:
        yield a_pass(op(kernel(5)))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(RUN, path, failing)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "old"
    simulate(RUN, path, generation())
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP])
def test_ended_from_outside_it_leaves_no_half_file(tmp_path: Path, ending: signal.Signals) -> None:
    command = [sys.executable, "-m", "traceanalyzer", "simulate", "--size", "2GB", "-q", "-o", str(tmp_path / "a.json")]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while not list(tmp_path.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert list(tmp_path.iterdir()), "it never began"
        process.send_signal(ending)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, list(tmp_path.iterdir())) == (128 + ending, [])
    assert b"Traceback" not in said


def test_a_group_size_needs_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--group-size", "2", "-o", str(tmp_path / "a.json")]) == 2
    assert "--in-turns" in capsys.readouterr().err

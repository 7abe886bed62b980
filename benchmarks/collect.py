"""What a window costs the run it is taken of: gaps between tokens with and without one, and the supervisor's own time.

A small random Llama generates without pause. Intervals with a window and intervals without alternate in one run; the
worst gap between two tokens of the ones is divided by that of the others, so that what else the machine does falls on
both. `ondemand` is Kineto's own thread, `python` is `torch.profiler` at a step boundary. An interval goes from the
request until the file is complete, and as long again without a window.

    python benchmarks/collect.py [--windows 8] [--steps 32 200] [--json FILE]

What could be wrong: a CPU run has no CUPTI, whose start and stop take time in the driver. With few windows the worst
gap is one observation; the medians of the intervals' own worst gaps stand beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.collect.ondemand import OnDemand
from tests.collect.rings import DECODE, hello, steady
from traceanalyzer.collect.processes import Process, Processes
from traceanalyzer.collect.ring import RingReader

NS = 1_000_000_000
TARGET = "--as-target"


def generate() -> None:
    """The recorded program: tokens without end."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=16, num_attention_heads=4)
    ).eval()
    prompt = torch.ones(1, 16, dtype=torch.long)
    while True:
        model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=400, do_sample=False,
                       pad_token_id=0, eos_token_id=None)  # fmt: skip


def gaps(process: Process, spans: list[tuple[int, int]]) -> list[int]:
    """For each span the longest time from one decode step's start to the next one's, nanoseconds."""
    starts, phases = process.log._copy(("start_ns", "phase"), 0)
    found = []
    for begin, end in spans:
        inside = [
            later - sooner
            for (sooner, first), (later, second) in pairwise(zip(starts, phases, strict=True))
            if first == second == DECODE and begin <= sooner and later <= end
        ]
        found.append(max(inside, default=0))
    return found


def measure_gaps(recorder: str, windows: int, steps: int) -> dict[str, Any]:
    """Worst gaps with and without windows, and what a profiled step takes."""
    with OnDemand("--steps", str(steps), "--window", "10s", recorder=recorder) as od:
        od.start(str(Path(__file__).resolve()), TARGET, KINETO_LOG_LEVEL="6")
        od.until(lambda: od.stepping(1), 120)
        (process,) = od.processes.live
        od.until(lambda: process.log.settled(time.time_ns()) and len(process.log) > 300, 120)
        quiet: list[tuple[int, int]] = []
        busy: list[tuple[int, int]] = []
        costs = []
        for _ in range(windows + 1):
            begin = time.time_ns()
            window = od.take(timeout=120)
            after = time.time_ns() + NS // 2
            od.until(lambda after=after: time.time_ns() > after, 10)
            end = time.time_ns()
            after = end + NS + (end - begin)  # a second for what may follow, then as long without a window
            od.until(lambda after=after: time.time_ns() > after, 60)
            busy.append((begin, end))
            quiet.append((end + NS, after))
            (raw,) = window.raws
            costs.append(process.log.overhead(raw.opened_ns or 0, raw.whole_until_ns or 0))
            raw.path.unlink()
        # The first window of a process imports and allocates; it is told apart.
        first, *with_window = gaps(process, busy)
        without = gaps(process, quiet[1:])
    ratios = [c["step_us"] / c["unprofiled_step_us"] for c in costs if c.get("unprofiled_step_us")]
    return {
        "recorder": recorder, "windows": windows, "steps": steps, "worst_ms": max(with_window) / 1e6,
        "worst_without_ms": max(without) / 1e6, "ratio": max(with_window) / max(without),
        "median_worst_ms": statistics.median(with_window) / 1e6,
        "median_worst_without_ms": statistics.median(without) / 1e6, "first_ms": first / 1e6,
        "step_ratio": statistics.median(ratios) if ratios else None,
        "steps_recorded": statistics.median(c.get("profiled_steps", 0) for c in costs),
        "step_us": costs[-1].get("unprofiled_step_us"),
    }  # fmt: skip


def measure_reading(ranks: int, seconds: float, steps_per_s: int) -> dict[str, float]:
    """Share of one core that reading the rings of so many ranks every 50 ms takes."""
    with tempfile.TemporaryDirectory() as folder:
        rings = [hello(Path(folder), pid, model={"name": "m"}) for pid in range(1, ranks + 1)]
        processes = Processes(Path(folder), lambda pid: True)
        processes.live = [
            Process(pid, {}, RingReader(Path(folder) / "rings" / f"{pid}.ring")) for pid in range(1, ranks + 1)
        ]
        spent, at, end = 0.0, time.time_ns(), time.monotonic() + seconds
        refreshes = 0
        while time.monotonic() < end:
            for ring in rings:
                ring.write(*steady(steps_per_s // 20, at, NS // steps_per_s))
            at += NS // 20
            before = time.process_time()
            processes.refresh()
            spent += time.process_time() - before
            refreshes += 1
            time.sleep(0.05)
        for process in processes.live:
            process.ring.close()
        for ring in rings:
            ring.close()
    return {"ranks": ranks, "steps_per_s": steps_per_s, "share": spent / (refreshes * 0.05),
            "us_per_refresh": spent / refreshes * 1e6}  # fmt: skip


def table(found: list[dict[str, Any]]) -> str:
    """The gaps as Markdown."""
    lines = [
        "| Recorder | Steps asked / recorded | Worst gap with a window, ms | without, ms | Ratio | Median of the "
        "intervals' worst: with / without, ms | First window, ms | Profiled step / plain |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for f in found:
        cost = "" if f["step_ratio"] is None else f"{f['step_ratio']:.2f}"
        lines.append(
            f"| {f['recorder']} | {f['steps']} / {f['steps_recorded']:.0f} | {f['worst_ms']:.0f} "
            f"| {f['worst_without_ms']:.0f} | {f['ratio']:.2f} | {f['median_worst_ms']:.0f} / "
            f"{f['median_worst_without_ms']:.0f} | {f['first_ms']:.0f} | {cost} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--steps", type=int, nargs="+", default=[32, 200])
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    found = []
    for steps in chosen.steps:
        for recorder in ("ondemand", "python"):
            found.append(measure_gaps(recorder, chosen.windows, steps))
            sys.stderr.write(json.dumps(found[-1]) + "\n")
    reading = [measure_reading(8, 5, rate) for rate in (20, 100)]
    print(table(found))
    for one in reading:
        print(f"\nReading the rings of {one['ranks']} ranks with {one['steps_per_s']} steps/s each every 50 ms: "
              f"{one['us_per_refresh']:.0f} us a time, {one['share']:.2%} of a core.")  # fmt: skip
    if chosen.json:
        chosen.json.write_text(json.dumps({"gaps": found, "reading": reading}, indent=1))


if __name__ == "__main__":
    if sys.argv[1:] == [TARGET]:
        generate()
    else:
        main()

"""Ranks for tests: simulated runs, one rank of which may be late or slow, and timelines made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.analysis import lines
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.simulate.passes import passes
from traceanalyzer.simulate.program import Pass
from traceanalyzer.simulate.scenario import Scenario
from traceanalyzer.simulate.write import simulate

TWO = Scenario(model="llama-3.2-1b", prompt=16, output=5, batch=2, ranks=2, mode="graph")
FOUR = replace(TWO, ranks=4, output=3, batch=1)
HOST_LATE_NS = 300_000
SLOWER = 1.2
PERIOD = 1_000_000

Source = Callable[[Scenario, int], Iterator[Pass]]


def late_host(late: int) -> Source:
    """The host of one rank takes `HOST_LATE_NS` more before every pass but the first; no two passes are alike."""

    def source(scenario: Scenario, rank: int) -> Iterator[Pass]:
        for place, one in enumerate(passes(scenario, rank)):
            uneven = place * 7919 % 97 * 1_000
            yield replace(one, host_after_ns=one.host_after_ns + uneven + (HOST_LATE_NS if rank == late else 0))

    return source


def slow_card(slow: int) -> Source:
    """The kernels of one rank's graphs take `SLOWER` times as long."""

    def source(scenario: Scenario, rank: int) -> Iterator[Pass]:
        for one in passes(scenario, rank):
            graph = tuple(
                kernel if kernel.communication else replace(kernel, duration_ns=round(kernel.duration_ns * SLOWER))
                for kernel in one.graph
            )
            yield replace(one, graph=graph) if rank == slow else one

    return source


def run(folder: Path, scenario: Scenario, source: Source = passes) -> list[Path]:
    """The traces of a run, rank by rank, their truths beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    return [written.trace for written in simulate(scenario, folder / "run.json", source)]


def truth(trace: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(trace.with_name(f"{trace.stem}.truth.json").read_text(encoding="utf-8"))
    return document


def changed(trace: Path, change: Callable[[dict[str, Any]], None], name: str | None = None) -> Path:
    """A copy of a trace whose document was changed."""
    document = json.loads(trace.read_text(encoding="utf-8"))
    change(document)
    path = trace.with_name(name or f"changed-{trace.name}")
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def moved(by_us: float, host: str = "elsewhere") -> Callable[[dict[str, Any]], None]:
    """Another clock, that of another host: all times `by_us` later."""

    def change(document: dict[str, Any]) -> None:
        document["host_name"] = host
        for event in document["traceEvents"]:
            if "ts" in event:
                event["ts"] = round(float(event["ts"]) + by_us, 3)

    return change


def without_rank(document: dict[str, Any]) -> None:
    """A trace that does not say which rank it is."""
    document.pop("distributedInfo", None)


def front_end(document: dict[str, Any]) -> None:
    """What is left of a process that never used a GPU."""
    without_rank(document)
    kept = ("cpu_op", "user_annotation", "python_function")
    document["traceEvents"] = [event for event in document["traceEvents"] if event.get("cat") in kept]


def rank(number: int, rows: Sequence[Mapping[str, object]], steps: Sequence[Mapping[str, object]]) -> Timeline:
    line = lines.line(sorted(rows, key=lambda row: int(str(row["start"]))), steps, info=lines.device(rank=number))
    return replace(line, trace=replace(line.trace, metadata=replace(line.trace.metadata, host_hash="one", rank=number)))


def kernel(start: int, duration: int, **facts: object) -> Mapping[str, object]:
    return {"start": start, "duration": duration, "stream": 7, **facts}


def comm(start: int, duration: int, role: str = "all_reduce") -> Mapping[str, object]:
    return kernel(start, duration, category="comm", role=role, name=1 if role == "all_reduce" else 2, stream=8)


def step(place: int, end: int) -> Mapping[str, object]:
    return {"phase": "decode", "start": place * PERIOD, "end": place * PERIOD + end}

"""Runs a scenario and writes its traces with their truths, one pass at a time.

What could be wrong: with a size, the last requests are cut off after the pass that reaches it; their own times are then
no part of the truth's `request`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from traceanalyzer.catalog.models import ModelConfig
from traceanalyzer.errors import InputError
from traceanalyzer.simulate import header
from traceanalyzer.simulate.clock import Clock, TimedPass, place_together
from traceanalyzer.simulate.kineto import Events
from traceanalyzer.simulate.limits import check
from traceanalyzer.simulate.output import Output, trace_paths, truth_path
from traceanalyzer.simulate.plants import Slow
from traceanalyzer.simulate.program import Pass
from traceanalyzer.simulate.scenario import Scenario
from traceanalyzer.simulate.truth import Truth
from traceanalyzer.simulate.variants import Variant, cut_begin, cut_end

Source = Callable[[Scenario, int], Iterator[Pass]]
"""The passes of a rank."""
Watch = Callable[[int, int], None]
"""Called after each pass with the number of passes and of bytes so far."""

ORIGIN_NS = 1_000_000_000_000
"""The first pass begins here, on a clock that starts with the machine."""
RANK_SKEW_NS = 7_000
"""Each rank's host is this much later than the one before it: ranks never start as one."""
_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5, "fp4": 0.5}


@dataclass(frozen=True, slots=True)
class Written:
    """One rank's files; `size` is the trace's text in bytes, before packing."""

    trace: Path
    truth: Path
    passes: int
    size: int


class _Rank:
    """One rank on its way into its file."""

    def __init__(self, output: Output, scenario: Scenario, variant: Variant, rank: int) -> None:
        gpu, model = check(scenario)
        self.truth = Truth(scenario, gpu, rank)
        self._events = Events(gpu, variant, rank, _held_bytes(scenario, model))
        self._scenario, self._variant = scenario, variant
        self._gpu, self._model = gpu, model
        self.output = output
        output.write(header.head(scenario, gpu, rank, variant))

    def add(self, timed: TimedPass) -> None:
        self.truth.add(timed)
        self.output.write(self._events.pass_(timed))

    def close(self) -> None:
        """Write what follows the events."""
        self.output.write(self._events.closing())
        block = header.block(self._scenario, self._gpu, self._model, self.truth.steps)
        self.output.write(header.foot(self.output.path.name, block))


def simulate(
    scenario: Scenario,
    path: Path,
    source: Source,
    *,
    variant: Variant | None = None,
    size: int | None = None,
    watch: Watch | None = None,
) -> list[Written]:
    """Write the traces of a scenario, one per rank, each with its truth beside it. Existing files are replaced.

    Args:
        scenario: what runs.
        path: where the trace goes; its suffix says how it is packed, and ranks are added to its name.
        source: the passes of a rank: `traceanalyzer.simulate.passes.passes`, or a program of one's own.
        variant: what is recorded; by default shapes, labels, ops and flows.
        size: go on with more requests until rank 0's trace, unpacked, has this many bytes; it ends with the pass that
            reaches it. None: the scenario once.
        watch: told how far it is after each pass.

    Raises:
        InputError, UnknownGPUError: the scenario cannot be simulated, or the files cannot be written.
    """
    check(scenario)
    source(scenario, 0)  # what it cannot run it refuses now, before there is a file
    variant = variant or Variant()
    scenario = replace(scenario, labels=scenario.labels and variant.labels)
    variant = replace(variant, labels=scenario.labels)
    paths = trace_paths(path, scenario.ranks)
    with ExitStack() as stack:
        ranks = [_Rank(stack.enter_context(Output(one)), scenario, variant, rank) for rank, one in enumerate(paths)]
        for placed in _windowed(_run(scenario, ranks, source, size, variant.cut), variant.cut):
            for rank, timed in zip(ranks, placed, strict=True):
                rank.add(timed)
            if watch is not None:
                watch(ranks[0].truth.steps, ranks[0].output.size)
        if not ranks[0].truth.steps:
            raise InputError("nothing runs in this scenario")
        truths = []
        for rank, one in zip(ranks, paths, strict=True):
            rank.close()
            truth = stack.enter_context(Output(truth_path(one)))
            truth.write(_text(rank.truth.document(one.name)))
            truths.append(truth)
        for rank, truth in zip(ranks, truths, strict=True):
            rank.output.commit()
            truth.commit()
        return [
            Written(rank.output.path, truth.path, rank.truth.steps, rank.output.size)
            for rank, truth in zip(ranks, truths, strict=True)
        ]


def _run(
    scenario: Scenario, ranks: list[_Rank], source: Source, size: int | None, cut: bool
) -> Iterator[list[TimedPass]]:
    """Every pass of all ranks, placed. With a size the scenario runs again and again."""
    clocks = [
        Clock(scenario.costs, ORIGIN_NS + rank * RANK_SKEW_NS, Slow(scenario.plants)) for rank in range(len(ranks))
    ]
    index = 0
    while True:
        before = index
        for works in zip(*(source(scenario, rank) for rank in range(len(ranks))), strict=True):
            yield place_together(clocks, index, works)
            index += 1
            if size is not None and ranks[0].output.size >= size:
                return
        for rank in ranks:
            if not cut:  # a window that cuts passes shows no request whole
                rank.truth.finish_requests()
        if size is None or index == before:
            return


def _windowed(passes: Iterator[list[TimedPass]], cut: bool) -> Iterator[list[TimedPass]]:
    """With `cut`, the first and the last pass as a window sees them that opens and closes within them."""
    if not cut:
        yield from passes
        return
    held = [cut_begin(one) for one in next(passes, [])]
    for following in passes:
        yield held
        held = following
    if held:
        yield [cut_end(one) for one in held]


def _held_bytes(scenario: Scenario, model: ModelConfig) -> int:
    """What the weights take on one rank."""
    dtype = scenario.dtype if scenario.weights == "same" else scenario.weights
    return int(model.parameters * _BYTES[dtype] / scenario.ranks)


def _text(document: dict[str, Any]) -> str:
    """The truth as JSON: one line per row of its long lists."""
    lines = []
    for key, value in document.items():
        if isinstance(value, list) and value:
            rows = ",\n  ".join(json.dumps(row, allow_nan=False) for row in value)
            lines.append(f"{json.dumps(key)}: [\n  {rows}\n ]")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}")
    return "{\n " + ",\n ".join(lines) + "\n}\n"

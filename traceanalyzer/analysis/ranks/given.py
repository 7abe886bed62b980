"""Which of the traces that were given are ranks of one run, and which are something else.

A server writes a trace of its front end, which tokenises and schedules, into the folder of its ranks; such a trace has
no work of a GPU, no call that submits any, and no rank. (vLLM calls it `async_llm`; the name decides nothing.) A rank
that no trace tells is taken from the files' names, which all engines number. A rank without a record of its device is
left out beside others; one whose file was cut short is analysed as far as it goes.

What could be wrong: a rank whose file lost all of its GPU records and calls, and its rank, passes for a front end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from traceanalyzer.analysis.attribution import SUBMITS
from traceanalyzer.errors import InputError
from traceanalyzer.trace import windows
from traceanalyzer.trace.tables import Note, Trace

_NAMED_RANK = re.compile(r"(?:^|[^A-Za-z0-9])(?:rank|TP)[-_]?(\d{1,6})(?=[^A-Za-z0-9]|$)", re.IGNORECASE)
"""vLLM ends the places of a process with `rank3` or `rank-3`, SGLang names the tensor-parallel place `TP-3`, others
write `rank3_trace.json`."""
_CUT_SHORT = frozenset({"truncated_json", "truncated_compression"})
_TOGETHER = "give the ranks of one run together, other files one at a time"
_NAMED = 8
"""How many ranks a note lists."""


def of_one_run(traces: Sequence[Trace]) -> tuple[list[Trace], list[Note]]:
    """The ranks of one run, windows joined, and notes on what was left out or is missing.

    Raises:
        InputError: no trace, or traces that are not the ranks and windows of one run.
    """
    if not traces:
        raise InputError("no trace to analyse")
    notes: list[Note] = []
    once = _once(traces, notes)
    ranks = _named(_without_front_ends(windows.by_process(once), notes), notes)
    kept = _without_empty(ranks, notes)
    _check(kept)
    notes += _missing(ranks)
    return kept, notes


def _once(traces: Sequence[Trace], notes: list[Note]) -> list[Trace]:
    """Every rank's file once: a copy of it is no other rank."""
    kept: list[Trace] = []
    copies: list[str] = []
    for trace in traces:
        if trace.metadata.rank is not None and any(_same(trace, other) for other in kept):
            copies.append(trace.source.name)
        else:
            kept.append(trace)
    if copies:
        notes.append(Note("rank_given_twice", "warning", len(copies), copies[0]))
    return kept


def _same(trace: Trace, other: Trace) -> bool:
    return trace.source.sha256 == other.source.sha256 and trace.metadata == other.metadata


def _without_front_ends(traces: Sequence[Trace], notes: list[Note]) -> list[Trace]:
    if len(traces) < 2 or not any(len(trace.kernels) for trace in traces):
        return list(traces)
    left = [trace for trace in traces if _is_front_end(trace)]
    if left:
        notes.append(Note("front_end_left_out", "info", len(left), left[0].source.name))
    return [trace for trace in traces if not _is_front_end(trace)]


def _is_front_end(trace: Trace) -> bool:
    if len(trace.kernels) or trace.metadata.rank is not None:
        return False
    calls = {trace.text(int(code)) for code in trace.launches["name"].unique()}
    return not _is_cut_short(trace) and not any(map(SUBMITS.search, calls))


def _without_empty(traces: list[Trace], notes: list[Note]) -> list[Trace]:
    """The traces without ranks of whose device nothing was recorded, as long as another one is left."""
    on_gpu = any(len(trace.kernels) for trace in traces)
    kept = [trace for trace in traces if not _is_empty(trace, on_gpu)]
    if not kept or len(kept) == len(traces):
        return traces
    ranks = sorted(trace.metadata.rank or 0 for trace in traces if _is_empty(trace, on_gpu))
    notes.append(Note("empty_rank_left_out", "warning", len(ranks), _listed(ranks, len(ranks))))
    return kept


def _is_empty(trace: Trace, on_gpu: bool) -> bool:
    ran = trace.kernels if on_gpu else trace.ops
    return trace.metadata.rank is not None and not len(ran) and not _is_cut_short(trace)


def _is_cut_short(trace: Trace) -> bool:
    return bool(_CUT_SHORT & {note.code for note in trace.quality})


def _listed(ranks: Sequence[int], count: int) -> str:
    """The first of `count` ranks."""
    return ", ".join(map(str, ranks[:_NAMED])) + (", ..." if count > _NAMED else "")


def _named(traces: list[Trace], notes: list[Note]) -> list[Trace]:
    """The traces with ranks from their names, where none of several tells its own and every name has another."""
    if len(traces) < 2 or any(trace.metadata.rank is not None for trace in traces):
        return traces
    found = [_NAMED_RANK.findall(trace.source.name) for trace in traces]
    ranks = [int(numbers[-1]) for numbers in found if numbers]
    if len(set(ranks)) < len(traces):
        return traces
    notes.append(Note("ranks_from_names", "info", len(traces)))
    return [
        replace(trace, metadata=replace(trace.metadata, rank=rank)) for trace, rank in zip(traces, ranks, strict=True)
    ]


def _check(traces: Sequence[Trace]) -> None:
    if len(traces) == 1:
        return
    seen: dict[int, str] = {}
    for trace in traces:
        rank, name = trace.metadata.rank, trace.source.name
        if rank is None:
            raise InputError(f"{name} does not say which rank it is, so it cannot be analysed with others", _TOGETHER)
        if rank in seen:
            raise InputError(f"{seen[rank]} and {name} are both rank {rank}, so they are not one run", _TOGETHER)
        seen[rank] = name
    if len({trace.metadata.world_size for trace in traces}) > 1:
        raise InputError("the traces come from runs of different world sizes", _TOGETHER)


def _missing(traces: Sequence[Trace]) -> list[Note]:
    """Says which ranks of the run were not given: a slower one may be among them."""
    size = max(trace.metadata.world_size or 1 for trace in traces)
    count = size - len(traces)
    if count <= 0:
        return []
    there = {trace.metadata.rank for trace in traces}
    lacking = [rank for rank in range(min(size, len(traces) + _NAMED + 1)) if rank not in there]
    return [Note("ranks_not_given", "warning", count, _listed(lacking, count))]

"""Which chain of events a step's time is, and how much shorter it would be without one kind of them.

Kinds: launch (ops, the short Python between them, launch calls, and what passes until the device starts), graph_launch,
sync, alloc, host (between two steps, or long inside one), latency (from one queued kernel to the next), comm, memcpy,
kernels.CATEGORY, artefact (not recorded), unknown. `saved` counts launch and graph_launch together as `launches`.

Savings of several kinds do not add up: without one of them another may hold the step up.

What could be wrong: the median step stands for all; a host that is ahead by more than a step is held against the step's
own launches only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from traceanalyzer.analysis.critical.graph import Edge, Graph, graph
from traceanalyzer.analysis.timeline import Timeline

LAUNCHES = frozenset(("launch", "graph_launch"))


@dataclass(frozen=True)
class CriticalPath:
    """The critical path of the median step of a phase.

    Args:
        phase: the phase.
        step: label of the step in the timeline.
        step_ns: its time, from its first activity to that of the next step.
        parts: nanoseconds on the path by kind, the most first; they sum to `step_ns`.
        saved: nanoseconds by which the step would be shorter if a kind took no time, the most first.
    """

    phase: str
    step: int
    step_ns: int
    parts: Mapping[str, int]
    saved: Mapping[str, int]


def critical_path(line: Timeline, phase: str) -> CriticalPath | None:
    """The critical path of a phase's median step; None on a CPU, and where no step can be taken apart."""
    step = _median(line, phase)
    events = graph(line, step) if step is not None and line.device.kind != "cpu" else None
    if step is None or events is None or events.step_ns <= 0:
        return None
    parts = _parts(events, times(events))
    kinds = {kind for event in events.events for edge in event.after for kind, _ in edge.parts}
    asked = {kind: frozenset((kind,)) for kind in sorted(kinds - LAUNCHES - {"unknown", "artefact"})} | {
        "launches": LAUNCHES
    }
    saved = {name: events.step_ns - _length(events, free) for name, free in asked.items()}
    return CriticalPath(phase, step, events.step_ns, _ranked(parts), _ranked(saved))


def _median(line: Timeline, phase: str) -> int | None:
    """The complete step whose period, or duration where none has one, is the median."""
    steps = line.complete_steps
    steps = steps[(steps["phase"] == phase) & (steps["parent_step"] < 0)]
    timed = steps[steps["period_ns"].notna()]
    lengths = timed["period_ns"] if len(timed) else steps["duration_ns"]
    if not len(lengths):
        return None
    order = np.argsort(lengths.to_numpy(np.float64), kind="stable")
    return int(lengths.index[order[(len(order) - 1) // 2]])


def times(events: Graph, free: Collection[str] = ()) -> list[int]:
    """When each event comes, in nanoseconds, if some kinds take no time. Without any: when it was recorded."""
    found: list[int] = []
    for event in events.events:
        waits = [found[edge.on] + _length_of(edge, free) for edge in event.after if not _waived(edge, free)]
        found.append(max(waits, default=event.at))
    return found


def _length_of(edge: Edge, free: Collection[str]) -> int:
    return sum(ns for kind, ns in edge.parts if kind not in free)


def _waived(edge: Edge, free: Collection[str]) -> bool:
    """Whether the host does not wait there for the device any more."""
    return edge.blocked and any(kind in free for kind, _ in edge.parts)


def _length(events: Graph, free: Collection[str]) -> int:
    found = times(events, free)
    return found[events.last] - found[events.first]


def _parts(events: Graph, found: list[int]) -> dict[str, int]:
    """Nanoseconds by kind on the chain that ends last, from the step's first activity on."""
    parts: dict[str, int] = {}
    begin, event = found[events.first], events.last
    while found[event] > begin:
        after = events.events[event].after
        if not after:
            parts["unknown"] = parts.get("unknown", 0) + found[event] - begin
            break
        edge = max(after, key=lambda one: found[one.on] + _length_of(one, ()))
        until = found[event]
        for kind, ns in reversed(edge.parts):
            counted = until - max(until - ns, begin) if ns > 0 else 0
            if counted > 0:
                parts[kind] = parts.get(kind, 0) + counted
            until -= ns
        event = edge.on
    return parts


def _ranked(parts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(((kind, ns) for kind, ns in parts.items() if ns > 0), key=lambda item: (-item[1], item[0])))

"""Adds up a simulated device's time: every nanosecond in one bucket, streaming, from what the simulator put in.

The definitions are those of the time ledger in docs/method.md, computed here on their own: what an instant is goes by
precedence (tensor-core kernel, other kernel, communication, copy, idle), overlapping tensor-core kernels share their
time, and a tensor-core kernel's time splits by its own FLOPs and bytes over the sheet's peaks.

A gap's cause is known, not inferred. The card had queued work: `idle_latency`. Else the host was late, and the gap
divides by what the host did: it waited for the card (`idle_sync`) or in the allocator (`idle_alloc`), it did its own
work between two passes (`idle_host`), or it waited for a request (`idle_no_work`); the remainder, up to the start of
the kernel that ends the gap, is launching: `idle_graph_launch` where that kernel belongs to a graph, `idle_sync` where
the gap began while the host waited and went straight on (it has to start over), and else `idle_launch`.

What could be wrong: what the ledger calls host work is only the time between passes; an op's own host time inside a
pass counts as launching.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from traceanalyzer.catalog.gpus import Gpu
from traceanalyzer.simulate.clock import Ran
from traceanalyzer.simulate.program import Kernel

TENSOR, PLAIN, COMMUNICATION, COPY = range(4)
"""Kinds of work, the first of them winning an instant."""
_BUCKETS = {PLAIN: "no_tensor_core", COMMUNICATION: "communication", COPY: "memcpy"}
OTHER = "other"
SYNC, BETWEEN, ALLOCATOR, INPUT = "sync", "between_passes", "allocator", "input"
_HOST_BUCKETS = {SYNC: "idle_sync", BETWEEN: "idle_host", ALLOCATOR: "idle_alloc", INPUT: "idle_no_work"}


@dataclass(frozen=True, slots=True)
class Activity:
    """One kernel or copy with the phase that its time counts for."""

    ran: Ran
    phase: str
    step: int = -1


def kind(ran: Ran) -> int:
    """Which kind of work it is, in order of precedence."""
    if not isinstance(ran.work, Kernel):
        return COPY
    if ran.work.communication:
        return COMMUNICATION
    return TENSOR if ran.work.tensor_core else PLAIN


def compute_ns(work: Kernel, gpu: Gpu) -> float | None:
    """FLOPs over the sheet's peak for the kernel's dtype and unit, in ns; None where either is unknown."""
    if work.flops is None:
        return None
    if not work.flops:
        return 0.0
    peak = gpu.peak_tflops(work.dtype, work.tensor_core) if work.dtype else None
    return work.flops / (peak * 1e3) if peak else None


def memory_ns(work: Kernel, gpu: Gpu) -> float | None:
    """Bytes over the sheet's bandwidth, in ns; None where unknown."""
    return None if work.bytes is None else work.bytes / gpu.bandwidth_gbs


class Account:
    """The books of one device. Feed activity in any order that `settle` can sort; `close` when all is there."""

    def __init__(self, gpu: Gpu) -> None:
        """Open empty books against a GPU's sheet."""
        self._gpu = gpu
        self._pending: list[Activity] = []
        self._host: deque[tuple[int, int, str]] = deque()
        self._cluster: list[Activity] = []
        self._cluster_end = 0
        self._before = OTHER
        self._whole: dict[tuple[str, str], int] = defaultdict(int)
        self._shared: dict[tuple[str, str], float] = defaultdict(float)
        self.causes: dict[tuple[str, str], int] = defaultdict(int)
        self.of_step: dict[int, tuple[dict[str, int], dict[str, int]]] = {}  # causes and buckets of its idle time
        self.start: int | None = None
        self.end = 0
        self.kernel_busy = 0
        self._tensor_total = 0

    def host(self, start: int, end: int, what: str) -> None:
        """The host was busy with `what` (SYNC, BETWEEN, ALLOCATOR or INPUT); call in order of time."""
        if end > start:
            self._host.append((start, end, what))

    def settle(self, activities: Iterable[Activity], until: float = inf) -> None:
        """Add activities and book everything that starts up to `until`, before which nothing more will start."""
        self._pending += activities
        self._pending.sort(key=lambda activity: activity.ran.start)
        count = 0
        for activity in self._pending:
            if activity.ran.start > until:
                break
            count += 1
            if self._cluster and activity.ran.start >= self._cluster_end:
                self._book_cluster()
                self._book_gap(activity)
            elif self.start is None:
                self.start = activity.ran.start
            self._cluster.append(activity)
            self._cluster_end = max(self._cluster_end, activity.ran.end)
        del self._pending[:count]

    def close(self) -> dict[tuple[str, str], int]:
        """Book the rest. Returns whole ns by (phase, bucket), which sum to `end - start`."""
        self.settle((), inf)
        if self._cluster:
            self._book_cluster()
        for key, ns in _rounded(self._shared, self._tensor_total).items():
            self._whole[key] += ns
        return {key: ns for key, ns in sorted(self._whole.items()) if ns}

    def _book_cluster(self) -> None:
        self.end = self._cluster_end
        if len(self._cluster) == 1:
            self._book(self._cluster, self._cluster[0].ran.end - self._cluster[0].ran.start)
        else:
            edges = sorted({edge for one in self._cluster for edge in (one.ran.start, one.ran.end)})
            for left, right in pairwise(edges):
                running = [one for one in self._cluster if one.ran.start <= left and one.ran.end >= right]
                self._book(running, right - left)
        self._before = self._cluster[-1].phase
        self._cluster = []

    def _book(self, running: list[Activity], ns: int) -> None:
        """Book `ns` during which exactly `running` ran, in order of their starts."""
        if not ns:
            return
        best = min(kind(one.ran) for one in running)
        self.kernel_busy += ns if best != COPY else 0
        winners = [one for one in running if kind(one.ran) == best]
        if best != TENSOR:
            self._whole[winners[0].phase, _BUCKETS[best]] += ns
            return
        self._tensor_total += ns
        for one in winners:
            self._book_tensor(one, ns / len(winners))

    def _book_tensor(self, one: Activity, ns: float) -> None:
        """Book a tensor-core kernel's share of an instant, divided as its whole duration divides."""
        work, duration = one.ran.work, one.ran.end - one.ran.start
        assert isinstance(work, Kernel)
        compute, memory = compute_ns(work, self._gpu), memory_ns(work, self._gpu)
        share, shared = ns / duration, self._shared
        if compute is None:
            shared[one.phase, "tensor_core_unknown"] += ns
            return
        useful = min(compute, duration)
        shared[one.phase, "tensor_core_useful"] += share * useful
        if memory is None:
            shared[one.phase, "tensor_core_unknown"] += share * (duration - useful)
            return
        waiting = max(min(memory, duration) - useful, 0.0)
        shared[one.phase, "tensor_core_memory"] += share * waiting
        shared[one.phase, "tensor_core_other"] += share * (duration - useful - waiting)

    def _book_gap(self, after: Activity) -> None:
        """The idle time between the last cluster and `after`, which ends it."""
        begin, end = self._cluster_end, after.ran.start
        if end <= begin:
            return
        # What no complete pass precedes lies outside the complete passes, as does what none follows.
        phase = OTHER if self._before == OTHER else after.phase
        ran = after.ran
        if ran.returned <= begin:
            self._book_idle(after.step, phase, {"queue_latency": (end - begin, "idle_latency")})
            return
        host = self._host_time(begin, min(end, ran.called))
        called, returned = max(begin, ran.called), max(begin, ran.returned)
        starts_over = host[SYNC] > 0 and not host[BETWEEN] and not host[INPUT]
        bucket = "idle_graph_launch" if ran.node else "idle_sync" if starts_over else "idle_launch"
        parts = {what: (ns, _HOST_BUCKETS[what]) for what, ns in host.items()}
        parts["host_ops"] = called - begin - sum(host.values()), bucket
        parts |= {"launch_call": (returned - called, bucket), "launch_latency": (end - returned, bucket)}
        self._book_idle(after.step, phase, parts)

    def _book_idle(self, step: int, phase: str, parts: dict[str, tuple[int, str]]) -> None:
        """Book ns and bucket of each cause of a gap that ends in a step."""
        if step not in self.of_step:
            self.of_step[step] = defaultdict(int), defaultdict(int)
        causes, buckets = self.of_step[step]
        for cause, (ns, bucket) in parts.items():
            if ns:
                self.causes[phase, cause] += ns
                self._whole[phase, bucket] += ns
                causes[cause] += ns
                buckets[bucket] += ns

    def _host_time(self, begin: int, end: int) -> dict[str, int]:
        """How much of an interval the host spent with what `host` was told."""
        while self._host and self._host[0][1] <= begin:
            self._host.popleft()
        found = dict.fromkeys(_HOST_BUCKETS, 0)
        for left, right, what in self._host:
            if left >= end:
                break
            found[what] += max(0, min(right, end) - max(left, begin))
        return found


def _rounded(exact: dict[tuple[str, str], float], total: int) -> dict[tuple[str, str], int]:
    """Whole numbers that sum to `total`: floors, and one more for the largest remainders."""
    floors = {key: int(value) for key, value in exact.items()}
    missing = total - sum(floors.values())
    by_remainder = sorted(exact, key=lambda key: (floors[key] - exact[key], key))
    for key in by_remainder[:missing]:
        floors[key] += 1
    return floors

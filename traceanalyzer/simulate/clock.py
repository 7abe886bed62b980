"""Places passes in time: one host thread that calls, streams that run what was called in order.

A launch call takes the host's time; the work starts a launch latency after the call returned, or a queue latency after
the work before it on the same stream, whichever is later. A blocking copy and a pass that reads its result make the
host wait. One call replays a whole graph. A communication kernel ends on all ranks at once, when the slowest has come.

What could be wrong: a real driver launches before its call returns, batches, and reorders between streams; streams
here wait for each other only through the host. Of the launch queue only the depth is modelled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

from traceanalyzer.simulate.plants import Slow
from traceanalyzer.simulate.program import Copy, HostCall, Kernel, Launch, Op, Pass, Replay, launched
from traceanalyzer.simulate.scenario import Costs, Plant

QUEUE_DEPTH = 1024
"""So many launches wait on a card before the next call blocks. Source: the CUDA runtime's launch queue."""
SYNC_RETURN_NS = 3_000
"""From the end of the work to the return of the call that waited for it."""
QUERY_NS = 1_000
"""A synchronising call that has nothing to wait for."""

LAUNCH, GRAPH, COPY, FILL, SYNC = (
    "cudaLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync", "cudaStreamSynchronize",
)  # fmt: skip
FILL_DIRECTION = "Memset"

Arrival = tuple[int, int]
"""When a rank's communication kernel starts, and how long it takes once everybody is there (ns)."""


@dataclass(slots=True)
class TimedOp:
    """One op's place on the host, in ns."""

    op: Op
    start: int
    external: int
    duration: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """One runtime call. `external` is the id of the op around it, 0 for none."""

    name: str
    start: int
    end: int
    correlation: int
    external: int


@dataclass(frozen=True, slots=True)
class Ran:
    """One kernel or copy as it ran. `called` and `returned` are its launch call's; `waited` is time for other ranks."""

    work: Kernel | Copy
    start: int
    end: int
    called: int
    returned: int
    correlation: int
    external: int
    node: int = 0  # of the graph, from 1; 0: launched by a call of its own
    waited: int = 0
    graph: int = 0


@dataclass(slots=True)
class TimedPass:
    """One pass with all its times. `begin` to `end` is the labelled host range; `waits` are the host's waits in it."""

    index: int
    work: Pass
    begin: int
    external: int
    end: int = 0
    between_end: int = 0  # with the host time between passes that follows
    host_end: int = 0  # and with the wait for a request
    graph: int = 0  # the last one replayed
    ops: list[TimedOp] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    ran: list[Ran] = field(default_factory=list)
    waits: list[tuple[int, int]] = field(default_factory=list)
    allocations: list[tuple[int, int]] = field(default_factory=list)
    planted: list[Plant] = field(default_factory=list)
    complete: bool = True
    labelled: bool = True


class Clock:
    """The clock of one rank: its host thread, its streams, and the numbers that the profiler gives out."""

    def __init__(self, costs: Costs, start_ns: int = 0, slow: Slow | None = None) -> None:
        """Start with an idle card at `start_ns`; `slow` is what is planted on this rank."""
        self.now = start_ns
        self._costs = costs
        self._slow = slow or Slow()
        self._late: tuple[int, int] | None = None
        self._free: dict[int, int] = {}
        self._queued: deque[int] = deque(maxlen=QUEUE_DEPTH)
        self._correlation = 0
        self._external = 0
        self._graphs: dict[tuple[int, ...], int] = {}

    def place(self, index: int, work: Pass) -> Generator[Arrival, int, TimedPass]:
        """Place one pass after everything before it.

        Yields at each communication kernel when it starts; is sent when it ends.
        """
        self._external += 1
        timed = TimedPass(index, work, self.now, self._external, planted=[*work.planted])
        self._late = _late_kernel(work)
        yield from self._walk(work.ops, timed)
        if work.graph:
            yield from self._replay(work.graph, (len(work.graph), *work.captured), timed)
        yield from self._walk(work.after, timed)
        if work.sync_after:
            self._wait(max(self._free.values(), default=self.now), 0, timed)
        timed.end = self.now
        self.now += work.host_after_ns + work.scheduler_ns
        timed.between_end = self.now
        self.now += work.input_ns
        timed.host_end = self.now
        return timed

    def _walk(self, ops: Sequence[Op | Launch | Replay], timed: TimedPass) -> Generator[Arrival, int, None]:
        """Everything that the ops call, depth first; without recursion, since it runs once per launch."""
        stack: list[tuple[TimedOp, Iterator[Op | Launch | HostCall | Replay]]] = []
        todo: Iterator[Op | Launch | HostCall | Replay] = iter(ops)
        while True:
            item = next(todo, None)
            if isinstance(item, Op):
                self._external += 1
                op = TimedOp(item, self.now, self._external)
                timed.ops.append(op)
                self.now += item.host_ns
                stack.append((op, todo))
                todo = iter(item.body)
            elif isinstance(item, HostCall):
                self._host_call(item, stack[-1][0].external if stack else 0, timed)
            elif isinstance(item, Replay):
                kind = (len(item.kernels), *timed.work.captured, item.piece)
                yield from self._replay(item.kernels, kind, timed)
            elif item is not None:
                yield from self._launch(item.work, stack[-1][0].external if stack else 0, timed)
            elif stack:
                op, todo = stack.pop()
                op.duration = self.now - op.start
            else:
                return

    def _launch(self, work: Kernel | Copy, external: int, timed: TimedPass) -> Generator[Arrival, int, None]:
        if isinstance(work, Kernel):
            cost = self._costs.launch_call_ns + self._slow.call("launch", timed.planted)
            call = self._call(LAUNCH, cost, external, timed)
        else:
            name = FILL if work.direction == FILL_DIRECTION else COPY
            call = self._call(name, self._costs.launch_call_ns, external, timed)
        start = self._start(work, call)
        end = start + work.duration_ns + self._lateness(timed)
        waited = 0
        if isinstance(work, Kernel) and work.communication:
            end = yield start, work.duration_ns
            waited = end - start - work.duration_ns
        self._ran(Ran(work, start, end, call.start, call.end, call.correlation, external, waited=waited), timed)
        if isinstance(work, Copy) and work.blocking:
            self._wait(end + work.late_ns, external, timed)

    def _replay(
        self, kernels: Sequence[Kernel], kind: tuple[int, ...], timed: TimedPass
    ) -> Generator[Arrival, int, None]:
        # A graph is captured for one size of batch: the same size replays the same graph.
        shape = (timed.work.tokens + timed.work.padded_tokens, *kind)
        timed.graph = self._graphs.setdefault(shape, len(self._graphs) + 1)
        cost = self._costs.graph_launch_ns + self._slow.call("graph_launch", timed.planted)
        call = self._call(GRAPH, cost, 0, timed)
        for node, kernel in enumerate(kernels, 1):
            start = self._start(kernel, call)
            end = start + kernel.duration_ns + self._lateness(timed)
            waited = 0
            if kernel.communication:
                end = yield start, kernel.duration_ns
                waited = end - start - kernel.duration_ns
            self._ran(
                Ran(kernel, start, end, call.start, call.end, call.correlation, 0, node, waited, timed.graph), timed
            )

    def _host_call(self, call: HostCall, external: int, timed: TimedPass) -> None:
        start = self.now
        idle = max(self._free.values(), default=start) if call.drains else start
        self.now = max(start, idle) + call.duration_ns
        self._correlation += 1
        timed.calls.append(Call(call.name, start, self.now, self._correlation, external))
        timed.allocations.append((start, self.now))

    def _lateness(self, timed: TimedPass) -> int:
        return self._late[1] if self._late is not None and self._late[0] == len(timed.ran) else 0

    def _call(self, name: str, cost: int, external: int, timed: TimedPass) -> Call:
        self._correlation += 1
        end = self.now + cost
        if len(self._queued) == QUEUE_DEPTH:
            end = max(end, self._queued[0])
        call = Call(name, self.now, end, self._correlation, external)
        timed.calls.append(call)
        self.now = end
        return call

    def _start(self, work: Kernel | Copy, call: Call) -> int:
        ready = call.end + self._costs.launch_latency_ns
        free = self._free.get(work.stream)
        return ready if free is None else max(ready, free + self._costs.queue_latency_ns)

    def _ran(self, ran: Ran, timed: TimedPass) -> None:
        timed.ran.append(ran)
        self._free[ran.work.stream] = ran.end
        if ran.node <= 1:
            self._queued.append(ran.start)

    def _wait(self, until: int, external: int, timed: TimedPass) -> None:
        self._correlation += 1
        end = max(self.now + QUERY_NS, until + SYNC_RETURN_NS)
        timed.calls.append(Call(SYNC, self.now, end, self._correlation, external))
        timed.waits.append((self.now, end))
        self.now = end


def _late_kernel(work: Pass) -> tuple[int, int] | None:
    """Which of a pass's kernels and copies is late, and by how much: the one before its first collective."""
    if not work.late_ns:
        return None
    for number, one in enumerate((*launched(work.ops), *work.graph, *launched(work.after))):
        if isinstance(one, Kernel) and one.communication:
            return number - 1, work.late_ns
    return None


def place_together(clocks: Sequence[Clock], index: int, works: Sequence[Pass]) -> list[TimedPass]:
    """Place the same pass of every rank; communication kernels wait for the slowest rank and end together.

    Args:
        clocks, works: one per rank; every rank has the same communication kernels in the same order.
        index: the pass's number.
    """
    placing = [clock.place(index, work) for clock, work in zip(clocks, works, strict=True)]
    placed: list[TimedPass] = []
    end: int | None = None
    while len(placed) < len(placing):
        arrivals: list[Arrival] = []
        for one in placing:
            try:
                arrivals.append(next(one) if end is None else one.send(end))
            except StopIteration as done:
                placed.append(done.value)
        if arrivals and len(arrivals) < len(placing):
            raise ValueError("the ranks do not communicate in step")
        if arrivals:
            end = max(start for start, _ in arrivals) + max(duration for _, duration in arrivals)
    return placed

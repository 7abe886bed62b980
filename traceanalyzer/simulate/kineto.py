"""Writes placed passes as the events of a Kineto trace: the categories, keys and order of torch 2.x.

Events are grouped by pass, so that a trace of any length takes bounded memory; torch groups them by category over the
whole trace, which readers must not rely on. What could be wrong: what no reader is known to need is left out (overhead
events, calls that ask for attributes), so a trace here is smaller than a recorded one.
"""

from __future__ import annotations

from collections.abc import Iterator

from traceanalyzer.catalog.gpus import Gpu
from traceanalyzer.simulate.clock import COPY, FILL, FILL_DIRECTION, GRAPH, LAUNCH, SYNC, Call, Ran, TimedPass
from traceanalyzer.simulate.fields import Fields, quoted, time_us
from traceanalyzer.simulate.plants import FREE, MALLOC
from traceanalyzer.simulate.program import Copy, Kernel, Pass
from traceanalyzer.simulate.side import Memory, Stacks
from traceanalyzer.simulate.variants import Variant

_CBID = {LAUNCH: 211, GRAPH: 311, COPY: 41, FILL: 51, SYNC: 131, MALLOC: 20, FREE: 22}
"""CUPTI's callback ids of the runtime calls."""
_HOST_SIDE = {True: "Pageable", False: "Pinned"}
FIRST_PID = 40_001


def label(index: int, work: Pass) -> str:
    """The name of the annotation around a pass; a mixed one also counts its two kinds."""
    text = f"ta.step[{work.phase} n={index} tokens={work.tokens} seqs={work.sequences}"
    text += f" ctx={work.context_sum} qk={work.query_context_sum}"
    text += f" padded={work.padded_tokens}" if work.padded_tokens else ""
    if work.phase == "mixed":
        text += f" prefill_tokens={work.prefill_tokens} decode_tokens={work.decode_tokens}"
        text += f" prefill_seqs={work.prefill_sequences} decode_seqs={work.decode_sequences}"
    return text + "]"


class Events:
    """The events of one rank's process and device, pass by pass, as JSON text with a leading separator."""

    def __init__(self, gpu: Gpu, variant: Variant, rank: int, held_bytes: int) -> None:
        """`held_bytes` is what the process has allocated before the first pass: its weights."""
        self._variant = variant
        self._fields = Fields(gpu)
        self._pid = FIRST_PID + rank
        self._device = rank
        self._memory = Memory(self._pid, rank, held_bytes)
        self._stacks = Stacks(self._pid)
        self._index = 0
        self._begun = False
        self._streams: set[int] = set()
        self._first: int | None = None
        self._last = 0

    def pass_(self, timed: TimedPass) -> str:
        """All events of one pass."""
        events = [*self._host(timed), *self._card(timed)]
        if self._first is None:
            self._first = timed.begin
        self._last = max([timed.host_end, *(ran.end for ran in timed.ran)])
        return self._joined(events)

    def closing(self) -> str:
        """The names of processes and threads, and the span of the recording."""
        first, pid, device = self._first or 0, self._pid, self._device
        threads = [(pid, pid, f"thread {pid} (python3)"), *((device, s, f"stream {s} ") for s in sorted(self._streams))]
        events = []
        for process, what, order in ((pid, "CPU", pid), (device, f"GPU {device}", 5_000_000 + device)):
            events += [
                _named("process_name", first, process, 0, '"name": "python3"'),
                _named("process_labels", first, process, 0, f'"labels": "{what}"'),
                _named("process_sort_index", first, process, 0, f'"sort_index": {order}'),
            ]
        for process, thread, name in threads:
            events.append(_named("thread_name", first, process, thread, f'"name": "{name}"'))
            events.append(_named("thread_sort_index", first, process, thread, f'"sort_index": {thread}'))
        events.append(
            f'  {{\n    "ph": "X", "cat": "Trace", "ts": {time_us(first)}, "dur": {time_us(self._last - first)},\n'
            '    "pid": "Spans", "tid": "PyTorch Profiler",\n    "name": "PyTorch Profiler (0)",\n'
            '    "args": {\n      "Op count": 0\n    }\n  }'
        )
        for name, place in (
            ("Iteration Start: PyTorch Profiler", '"pid": "Traces", "tid": "Trace PyTorch Profiler"'),
            ("Record Window End", '"pid": "", "tid": ""'),
        ):
            ts = first if name.startswith("Iteration") else self._last
            events.append(f'  {{\n    "name": "{name}", "ph": "i", "s": "g",\n    {place}, "ts": {time_us(ts)}\n  }}')
        return self._joined(events)

    def _joined(self, events: list[str]) -> str:
        if not events:
            return ""
        text = ",\n".join(events)
        if self._begun:
            return ",\n" + text
        self._begun = True
        return text

    def _host(self, timed: TimedPass) -> Iterator[str]:
        """The label, the ops and what belongs to them."""
        place, variant = f'"pid": {self._pid}, "tid": {self._pid}', self._variant
        if variant.labels and timed.labelled:
            yield self._op("user_annotation", quoted(label(timed.index, timed.work)), place, timed.begin,
                           timed.end - timed.begin, timed.external, "")  # fmt: skip
        if variant.ops:
            for op in timed.ops:
                inputs = self._fields.arguments(op.op.arguments) if variant.shapes else ""
                yield self._op("cpu_op", quoted(op.op.name), place, op.start, op.duration, op.external, inputs)
            if variant.memory:
                yield from self._memory.events(timed)
        if variant.stacks:
            yield from self._stacks.events(timed)

    def _op(self, category: str, name: str, place: str, start: int, ns: int, external: int, inputs: str) -> str:
        self._index += 1
        return (
            f'  {{\n    "ph": "X", "cat": "{category}", "name": {name}, {place},\n'
            f'    "ts": {time_us(start)}, "dur": {time_us(ns)},\n    "args": {{\n'
            f'      "External id": {external}, "Record function id": 0, {inputs}'
            f'"Ev Idx": {self._index - 1}\n    }}\n  }}'
        )

    def _card(self, timed: TimedPass) -> Iterator[str]:
        """Runtime calls, kernels and copies, with the arrows between them; then the label's copy on each stream."""
        flows = self._variant.flows
        started = {ran.correlation for ran in timed.ran}
        for call in timed.calls:
            yield self._call(call)
            if flows and call.correlation in started:
                yield _flow("s", call.correlation, self._pid, self._pid, call.start)
        for ran in timed.ran:
            work = ran.work
            yield self._kernel(ran, work) if isinstance(work, Kernel) else self._copy(ran, work)
            if flows:
                yield _flow("f", ran.correlation, self._device, ran.work.stream, ran.start)
        streams = sorted({ran.work.stream for ran in timed.ran})
        self._streams.update(streams)
        if not (self._variant.labels and timed.labelled):
            return
        for stream in streams:
            own = [ran for ran in timed.ran if ran.work.stream == stream]
            start, end = own[0].start, own[-1].end
            yield (
                f'  {{\n    "ph": "X", "cat": "gpu_user_annotation", "name": {quoted(label(timed.index, timed.work))}, '
                f'"pid": {self._device}, "tid": {stream},\n    "ts": {time_us(start)}, "dur": {time_us(end - start)},\n'
                f'    "args": {{\n      "External id": {timed.external}\n    }}\n  }}'
            )

    def _external(self, external: int) -> str:
        return f'"External id": {external}, ' if external and self._variant.ops else ""

    def _call(self, call: Call) -> str:
        return (
            f'  {{\n    "ph": "X", "cat": "cuda_runtime", "name": "{call.name}", "pid": {self._pid}, '
            f'"tid": {self._pid},\n    "ts": {time_us(call.start)}, "dur": {time_us(call.end - call.start)},\n'
            f'    "args": {{\n      {self._external(call.external)}"cbid": {_CBID[call.name]}, '
            f'"correlation": {call.correlation}\n    }}\n  }}'
        )

    def _kernel(self, ran: Ran, kernel: Kernel) -> str:
        # A node's id is unique over all graphs: CUPTI numbers nodes within the graph's own range.
        node = f', "graph id": {ran.graph}, "graph node id": {(ran.graph << 32) + ran.node}' if ran.node else ""
        return self._on_card(
            "kernel", quoted(kernel.name), ran,
            f'{self._external(ran.external)}"queued": 0, "device": {self._device}, "context": 1, '
            f'"stream": {kernel.stream}, "correlation": {ran.correlation}, {self._fields.launching(kernel)}{node}',
        )  # fmt: skip

    def _copy(self, ran: Ran, copy: Copy) -> str:
        rate = copy.size / (ran.end - ran.start) if ran.end > ran.start else 0.0
        args = (
            f'{self._external(ran.external)}"device": {self._device}, "context": 1, "stream": {copy.stream}, '
            f'"correlation": {ran.correlation}, "bytes": {copy.size}, "memory bandwidth (GB/s)": {rate!r}'
        )
        if copy.direction == FILL_DIRECTION:
            return self._on_card("gpu_memset", '"Memset (Device)"', ran, args)
        host = {"HtoD": f"{_HOST_SIDE[copy.blocking]} -> Device", "DtoH": "Device -> Pinned"}
        name = f'"Memcpy {copy.direction} ({host.get(copy.direction, "Device -> Device")})"'
        return self._on_card("gpu_memcpy", name, ran, args)

    def _on_card(self, category: str, name: str, ran: Ran, args: str) -> str:
        return (
            f'  {{\n    "ph": "X", "cat": "{category}", "name": {name}, "pid": {self._device}, '
            f'"tid": {ran.work.stream},\n    "ts": {time_us(ran.start)}, "dur": {time_us(ran.end - ran.start)},\n'
            f'    "args": {{\n      {args}\n    }}\n  }}'
        )


def _flow(kind: str, number: int, process: int, thread: int, ns: int) -> str:
    end = ', "bp": "e"' if kind == "f" else ""
    return (
        f'  {{\n    "ph": "{kind}", "id": {number}, "pid": {process}, "tid": {thread}, "ts": {time_us(ns)},\n'
        f'    "cat": "ac2g", "name": "ac2g"{end}\n  }}'
    )


def _named(name: str, ns: int, process: int, thread: int, args: str) -> str:
    return (
        f'  {{\n    "name": "{name}", "ph": "M", "ts": {time_us(ns)}, "pid": {process}, "tid": {thread},\n'
        f'    "args": {{\n      {args}\n    }}\n  }}'
    )

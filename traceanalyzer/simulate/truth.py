"""The truth of a simulated trace: what was put in, added up pass by pass. Its schema stands in docs/simulate.md.

Nothing here looks at the trace; nothing is estimated. Unknown (work that depends on data) is null and makes sums over
it null. What could be wrong: a kernel's FLOPs and bytes are algorithmic, by the closed forms of the model's shapes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from traceanalyzer.catalog.gpus import Gpu
from traceanalyzer.simulate.account import (
    ALLOCATOR,
    BETWEEN,
    INPUT,
    OTHER,
    SYNC,
    Account,
    Activity,
    compute_ns,
)
from traceanalyzer.simulate.clock import Ran, TimedPass
from traceanalyzer.simulate.program import Kernel
from traceanalyzer.simulate.requests import Requests
from traceanalyzer.simulate.scenario import Plant, Scenario

SCHEMA = 1
DRAFT = "draft"
_HEAVY_ROLES = frozenset({"gemm", "gemv", "attention", "moe"})
_COUNTS = (
    "tokens", "prefill_tokens", "decode_tokens", "sequences", "prefill_sequences", "decode_sequences", "context_sum",
    "query_context_sum",
)  # fmt: skip


_SUMMED = ("tokens", "prefill_tokens", "decode_tokens", "padded_tokens")


@dataclass(slots=True)
class _Sum:
    """A sum that becomes unknown with its first unknown part; `known_ns` is the time of the known ones."""

    value: float = 0.0
    unknown: bool = False
    known_ns: int = 0

    def add(self, value: float | None, ns: int) -> None:
        if value is None:
            self.unknown = True
        else:
            self.value += value
            self.known_ns += ns

    @property
    def total(self) -> float | None:
        return None if self.unknown else self.value


@dataclass(slots=True)
class _Work:
    """Kernels added up; `example` is one of them."""

    example: Kernel | None = None
    count: int = 0
    total_ns: int = 0
    flops: _Sum = field(default_factory=_Sum)
    bytes: _Sum = field(default_factory=_Sum)
    weight_bytes: float = 0.0
    kv_bytes: float = 0.0

    def add(self, kernel: Kernel, ns: int) -> None:
        self.example = kernel
        self.count += 1
        self.total_ns += ns
        self.flops.add(kernel.flops, ns)
        self.bytes.add(kernel.bytes, ns)
        self.weight_bytes += kernel.weight_bytes
        self.kv_bytes += kernel.kv_bytes

    def row(self) -> dict[str, Any]:
        return {
            "count": self.count, "total_ns": self.total_ns, "flops": self.flops.total, "bytes": self.bytes.total,
            "weight_bytes": self.weight_bytes, "kv_bytes": self.kv_bytes,
        }  # fmt: skip


class Truth:
    """The truth of one rank's trace, pass by pass."""

    def __init__(self, scenario: Scenario, gpu: Gpu, rank: int = 0) -> None:
        """Nothing has run yet."""
        self._scenario = scenario
        self._gpu = gpu
        self._rank = rank
        self._account = Account(gpu)
        self._steps: list[dict[str, Any]] = []
        self._floors: list[tuple[float, float]] = []
        self._kernels: dict[tuple[str, str], _Work] = defaultdict(_Work)
        self._phases: dict[str, _Work] = defaultdict(_Work)
        self._requests = Requests(scenario.output, scenario.skip_prefill, 1 + scenario.right)
        self._last_target: dict[str, Any] | None = None
        self._ideal = _Sum()
        self._ideal_flops = _Sum()
        self._launches: dict[str, int] = defaultdict(int)
        self._planted: Counter[Plant] = Counter()
        self._waited = 0
        self._copies = 0

    @property
    def steps(self) -> int:
        """How many passes there were."""
        return len(self._steps)

    def add(self, timed: TimedPass) -> None:
        """Add a pass, in the order they ran."""
        phase = timed.work.phase if timed.complete else OTHER
        stalls = [(*wait, SYNC) for wait in timed.waits] + [(*call, ALLOCATOR) for call in timed.allocations]
        for stall in sorted(stalls):
            self._account.host(*stall)
        self._account.host(timed.end, timed.between_end, BETWEEN)
        self._account.host(timed.between_end, timed.host_end, INPUT)
        self._account.settle((Activity(ran, phase, timed.index) for ran in timed.ran), timed.host_end)
        self._planted.update(timed.planted)
        step = _Work()
        for ran in timed.ran:
            if isinstance(ran.work, Kernel):
                self._add_kernel(ran, ran.work, phase, timed, step)
            else:
                self._copies += 1
        if timed.ran:
            self._add_step(timed, step)
            self._launches[phase] += len({ran.correlation for ran in timed.ran})

    def finish_requests(self) -> None:
        """Every request added so far got its last token."""
        self._requests.finish()

    def _add_kernel(self, ran: Ran, work: Kernel, phase: str, timed: TimedPass, step: _Work) -> None:
        ns = ran.end - ran.start
        self._kernels[phase, work.name].add(work, ns)
        self._phases[phase].add(work, ns)
        step.add(work, ns)
        self._waited += ran.waited
        if timed.complete and phase == "prefill" and work.role in _HEAVY_ROLES and work.flops != 0.0:
            self._ideal.add(compute_ns(work, self._gpu), ns)
            self._ideal_flops.add(work.flops, ns)

    def _add_step(self, timed: TimedPass, work: _Work) -> None:
        start = min(ran.start for ran in timed.ran)
        end = max(ran.end for ran in timed.ran)
        draft = timed.work.phase == DRAFT
        if self._last_target is not None and not draft:
            self._last_target["period_ns"] = start - self._last_target["start_ns"]
        row = {"index": timed.index, "phase": timed.work.phase, "complete": timed.complete}
        row |= {name: getattr(timed.work, name) for name in _COUNTS}
        row |= {"start_ns": start, "end_ns": end, "busy_ns": _union(timed.ran), "period_ns": None}
        row |= {"flops": work.flops.total, "bytes": work.bytes.total}
        row |= {"weight_bytes": work.weight_bytes, "kv_bytes": work.kv_bytes}
        useful = timed.work.useful or (work.flops.total, work.bytes.total)
        row |= {"padded_tokens": timed.work.padded_tokens, "useful_flops": useful[0], "useful_bytes": useful[1]}
        row["communication_wait_ns"] = sum(ran.waited for ran in timed.ran)
        planted: Counter[str] = Counter()
        for plant in timed.planted:
            planted[plant.kind] += plant.ns
        row["planted"] = dict(planted)
        row["parent"] = self._last_target["index"] if draft and self._last_target is not None else None
        self._steps.append(row)
        self._last_target = self._last_target if draft else row
        self._requests.serve(timed.work.requests, start, end)

    def document(self, trace: str) -> dict[str, Any]:
        """The whole truth as plain values; `trace` is the base name of the trace. Closes the books."""
        ledger = self._account.close()
        return {
            "truth_schema": SCHEMA,
            "simulated": True,
            "trace": trace,
            "scenario": asdict(self._scenario),
            "model": self._scenario.model,
            "gpu": self._gpu.id,
            "rank": self._rank,
            "ranks": self._scenario.ranks,
            "span": self._span(ledger),
            "phases": self._phase_rows(ledger),
            "request": self._requests.document(self._scenario.prompt),
            "decode_floor": self._floor(),
            "prefill_ideal": self._prefill_ideal(),
            "ledger": [{"phase": phase, "bucket": bucket, "ns": ns} for (phase, bucket), ns in ledger.items()],
            "idle_causes": [
                {"phase": phase, "cause": cause, "ns": ns}
                for (phase, cause), ns in sorted(self._account.causes.items())
                if ns
            ],
            "kernels": [self._kernel_row(key, work) for key, work in sorted(self._kernels.items())],
            "planted": [
                asdict(plant) | {"times": self._planted[plant]} for plant in dict.fromkeys(self._scenario.plants)
            ],
            "steps": [step | self._idle(step["index"]) for step in self._steps],
        }

    def _idle(self, index: int) -> dict[str, dict[str, int]]:
        """The idle time up to and in a step, by cause and by bucket."""
        causes, buckets = self._account.of_step.get(index, ({}, {}))
        return {"idle_causes": dict(sorted(causes.items())), "idle": dict(sorted(buckets.items()))}

    def _span(self, ledger: dict[tuple[str, str], int]) -> dict[str, Any]:
        start, end = self._account.start or 0, self._account.end
        span = end - start
        idle = sum(ns for (_, bucket), ns in ledger.items() if bucket.startswith("idle_"))
        useful = sum(ns for (_, bucket), ns in ledger.items() if bucket == "tensor_core_useful")
        return {
            "start_ns": start, "end_ns": end, "span_ns": span, "busy_ns": span - idle,
            "kernel_busy_ns": self._account.kernel_busy, "kernels": sum(w.count for w in self._phases.values()),
            "copies": self._copies, "gpu_util": self._account.kernel_busy / span if span else None,
            "tensor_core_useful_share": useful / span if span else None,
            "communication_wait_ns": self._waited,
        }  # fmt: skip

    def _phase_rows(self, ledger: dict[tuple[str, str], int]) -> dict[str, Any]:
        return {phase: self._phase_row(phase, ledger) for phase in sorted({phase for phase, _ in ledger})}

    def _phase_row(self, phase: str, ledger: dict[tuple[str, str], int]) -> dict[str, Any]:
        work = self._phases[phase]
        steps = [step for step in self._steps if step["complete"] and step["phase"] == phase]
        booked = {bucket: ns for (name, bucket), ns in ledger.items() if name == phase}
        duration = sum(booked.values())
        idle = sum(ns for bucket, ns in booked.items() if bucket.startswith("idle_"))
        row: dict[str, Any] = {"steps": len(steps)}
        row |= {name: sum(step[name] for step in steps) for name in _SUMMED}
        row |= {"duration_ns": duration, "busy_ns": duration - idle, "kernels": work.count}
        row |= {"launches": self._launches[phase], "kernel_ns": work.total_ns}
        row |= {"flops": work.flops.total, "bytes": work.bytes.total}
        row |= {"flops_known_ns": work.flops.known_ns, "bytes_known_ns": work.bytes.known_ns}
        return row | {"weight_bytes": work.weight_bytes, "kv_bytes": work.kv_bytes}

    def _kernel_row(self, key: tuple[str, str], work: _Work) -> dict[str, Any]:
        phase, name = key
        kernel = work.example
        assert kernel is not None
        facts = {"role": kernel.role, "dtype": kernel.dtype, "tensor_core": kernel.tensor_core}
        return {"phase": phase, "name": name, **facts, **work.row()}

    def _floor(self) -> dict[str, Any] | None:
        """Medians over the complete decode passes: what one reads at least, and how long it took."""
        steps = [step for step in self._steps if step["complete"] and step["phase"] == "decode"]
        if not steps:
            return None
        weights, kv = (median(step[name] for step in steps) for name in ("weight_bytes", "kv_bytes"))
        periods = [step["period_ns"] for step in steps if step["period_ns"] is not None]
        floor = (weights + kv) / self._gpu.bandwidth_gbs
        measured = median(periods or [step["end_ns"] - step["start_ns"] for step in steps])
        return {
            "weight_bytes": weights, "kv_bytes": kv, "floor_ns": floor, "measured_ns": measured,
            "busy_ns": median(step["busy_ns"] for step in steps), "ratio": measured / floor if floor else None,
        }  # fmt: skip

    def _prefill_ideal(self) -> dict[str, Any] | None:
        """The matrix products and attention of the complete prefill passes, over the sheet's peaks."""
        steps = [step for step in self._steps if step["complete"] and step["phase"] == "prefill"]
        if not steps:
            return None
        measured = sum(step["end_ns"] - step["start_ns"] for step in steps)
        return {"flops": self._ideal_flops.total, "ideal_ns": self._ideal.total, "measured_ns": measured}


def _union(ran: list[Ran]) -> int:
    """Length of the union of what ran, in ns."""
    total = reach = 0
    for one in sorted(ran, key=lambda one: one.start):
        total += max(0, one.end - max(one.start, reach))
        reach = max(reach, one.end)
    return total

"""Whatever the program: streams run in order, nothing starts before its call, and every nanosecond is booked once."""

from __future__ import annotations

from collections import Counter, defaultdict

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.simulate.programs import COSTS, a_pass, booked, kernel, matrix, op, place
from traceanalyzer.catalog import gpus
from traceanalyzer.simulate.account import Account
from traceanalyzer.simulate.clock import TimedPass
from traceanalyzer.simulate.program import Copy, Kernel, Op, Pass

A100 = gpus.find("a100-sxm4-80gb")
NANOSECONDS = st.integers(1, 60)
STREAMS = st.sampled_from((7, 7, 7, 20))

kernels = st.one_of(
    st.builds(lambda ns, stream: kernel(ns, stream=stream), NANOSECONDS, STREAMS),
    st.builds(
        lambda ns, flops, size, stream: matrix(ns, flops, size, stream=stream),
        NANOSECONDS, st.none() | st.floats(0, 2e7), st.none() | st.floats(0, 1e5), STREAMS,
    ),
)  # fmt: skip
copies = st.builds(lambda ns, stop: Copy("DtoH", 8, ns, blocking=stop), NANOSECONDS, st.booleans())
leaves = st.builds(lambda body, host: op(*body, host=host), st.lists(kernels | copies, max_size=3), st.integers(0, 30))
ops: st.SearchStrategy[Op] = st.recursive(
    leaves, lambda inner: st.builds(lambda body: op(*body), st.lists(inner, max_size=2)), max_leaves=4
)
passes: st.SearchStrategy[Pass] = st.builds(
    lambda phase, made, graph, sync, host: a_pass(
        *made, phase=phase, graph=tuple(graph), sync_after=sync, host_after_ns=host
    ),
    st.sampled_from(("prefill", "decode", "mixed")), st.lists(ops, max_size=4), st.lists(kernels, max_size=3),
    st.booleans(), st.integers(0, 100),
)  # fmt: skip


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(passes, min_size=1, max_size=5))
def test_every_nanosecond_once(programs: list[Pass]) -> None:
    placed = place(*programs)
    _check_order(placed)
    account = Account(A100)
    ledger = booked(account, placed)
    if account.start is None:
        assert not ledger
        return
    painted, idle = _painted(placed, account.start, account.end)
    assert sum(ledger.values()) == account.end - account.start
    assert sum(ns for (_, bucket), ns in ledger.items() if bucket.startswith("idle_")) == idle
    assert sum(account.causes.values()) == idle
    found: Counter[str] = Counter()
    for (_, bucket), ns in ledger.items():
        if not bucket.startswith("idle_"):
            found["tensor" if bucket.startswith("tensor_core") else bucket] += ns
    assert found == painted
    assert account.kernel_busy == painted["tensor"] + painted["no_tensor_core"]


def _painted(placed: list[TimedPass], start: int, end: int) -> tuple[Counter[str], int]:
    """The same by painting every nanosecond, the weaker kind first."""
    line = ["idle"] * (end - start)
    all_ran = [one for timed in placed for one in timed.ran]
    for wanted in ("memcpy", "no_tensor_core", "tensor"):
        for one in all_ran:
            tensor = isinstance(one.work, Kernel) and one.work.tensor_core
            what = "tensor" if tensor else "no_tensor_core" if isinstance(one.work, Kernel) else "memcpy"
            if what == wanted:
                line[one.start - start : one.end - start] = [what] * (one.end - one.start)
    counted = Counter(line)
    idle = counted.pop("idle", 0)
    return counted, idle


def _check_order(placed: list[TimedPass]) -> None:
    ends: dict[int, int] = defaultdict(int)
    now = 0
    for timed in placed:
        assert now == timed.begin <= timed.end <= timed.host_end
        for call in timed.calls:
            assert now <= call.start <= call.end <= timed.end
            now = call.end
        now = timed.host_end
        for one in timed.ran:
            assert one.start >= one.returned + COSTS.launch_latency_ns
            assert one.start >= ends[one.work.stream]
            assert one.end - one.start == one.work.duration_ns
            ends[one.work.stream] = one.end
    for timed in placed:
        for child in timed.ops:
            assert timed.begin <= child.start <= child.start + child.duration <= timed.end

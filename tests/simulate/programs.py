"""Small programs made by hand, with round times that a person can add up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from traceanalyzer.simulate.account import Account, Activity
from traceanalyzer.simulate.clock import Clock, TimedPass
from traceanalyzer.simulate.program import Copy, Kernel, Launch, Op, Pass, Scalar, Tensor
from traceanalyzer.simulate.scenario import Costs, Scenario

COSTS = Costs(
    launch_call_ns=10, launch_latency_ns=5, queue_latency_ns=2, graph_launch_ns=40, op_host_ns=3, between_steps_ns=200
)
"""Ten to call, five to start on an idle card, two from one kernel to the next."""

MATRIX, PLAIN = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", "void at::native::CUDAFunctor_add()"


def kernel(ns: int, **facts: Any) -> Kernel:
    """A kernel off tensor cores without work, unless said otherwise."""
    defaults: dict[str, Any] = {"flops": 0.0, "bytes": 0.0, "dtype": "bf16", "tensor_core": False}
    return Kernel(**({"name": PLAIN, "role": "copy", "duration_ns": ns} | defaults | facts))


def matrix(ns: int, flops: float | None, size: float | None, **facts: Any) -> Kernel:
    """A bf16 matrix product on tensor cores."""
    return kernel(ns, name=MATRIX, role="gemm", flops=flops, bytes=size, tensor_core=True, **facts)


def op(*body: Kernel | Copy | Op, host: int = 3, name: str = "aten::mm", module: str | None = None) -> Op:
    """An op with one bf16 input that launches its body."""
    items = tuple(one if isinstance(one, Op) else Launch(one) for one in body)
    return Op(name, (Tensor((4, 8), "c10::BFloat16"), Scalar("1")), items, host, module)


def a_pass(*ops: Op, phase: str = "decode", tokens: int = 1, context: int = 10, **facts: Any) -> Pass:
    """A pass of one sequence."""
    prefill = tokens if phase == "prefill" else 0
    counts: dict[str, Any] = {
        "tokens": tokens, "prefill_tokens": prefill, "decode_tokens": tokens - prefill, "sequences": 1,
        "prefill_sequences": int(prefill > 0), "decode_sequences": int(prefill == 0), "context_sum": context,
        "query_context_sum": tokens * context, "requests": (0,),
    }  # fmt: skip
    return Pass(phase=phase, **(counts | {"ops": ops} | facts))


def place(*passes: Pass, costs: Costs = COSTS) -> list[TimedPass]:
    """The passes on one rank's clock, which starts at 0; nothing may communicate."""
    clock = Clock(costs)
    placed = []
    for index, one in enumerate(passes):
        try:
            next(clock.place(index, one))
        except StopIteration as done:
            placed.append(done.value)
    assert len(placed) == len(passes)
    return placed


def ran(placed: Sequence[TimedPass]) -> list[tuple[int, int]]:
    """Start and end of everything that ran."""
    return [(one.start, one.end) for timed in placed for one in timed.ran]


def booked(account: Account, placed: Sequence[TimedPass]) -> dict[tuple[str, str], int]:
    """The ledger of placed passes."""
    for timed in placed:
        for left, right in timed.waits:
            account.host(left, right, "sync")
        account.host(timed.end, timed.host_end, "between_passes")
        account.settle([Activity(one, timed.work.phase) for one in timed.ran], timed.host_end)
    return account.close()


def source(*passes: Pass) -> Callable[[Scenario, int], Iterator[Pass]]:
    """The same passes for every rank."""
    return lambda scenario, rank: iter(passes)


def generation(output: int = 4, layers: int = 3, mode: str = "eager") -> Callable[[Scenario, int], Iterator[Pass]]:
    """A prefill of 64 tokens and `output - 1` decode passes with the token read back after each."""

    def run(scenario: Scenario, rank: int) -> Iterator[Pass]:
        for index in range(output):
            tokens = 64 if index == 0 else 1
            work = matrix(30_000, 2.0 * tokens * 4096 * 4096, 2.0 * 4096 * 4096, weight_bytes=2.0 * 4096 * 4096)
            plain = kernel(4_000, flops=4096.0 * tokens, bytes=16384.0 * tokens, dtype="fp32")
            layer = (op(work, module="Linear_0"), op(plain, name="aten::add"))
            read = op(op(Copy("DtoH", 8, 1_000, blocking=True), name="aten::_local_scalar_dense"), name="aten::item")
            replay = mode == "graph" and index > 0
            yield a_pass(
                *(() if replay else layer * layers),
                phase="decode" if index else "prefill",
                tokens=tokens,
                context=64 + index,
                graph=(work, plain) * layers if replay else (),
                after=(read,),
                host_after_ns=50_000,
            )

    return run

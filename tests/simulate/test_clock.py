"""Timelines worked out by hand: when calls are made, when kernels run, and where every idle nanosecond went."""

from __future__ import annotations

import pytest

from tests.simulate.programs import COSTS, a_pass, booked, kernel, matrix, op, place, ran
from traceanalyzer.catalog import gpus
from traceanalyzer.simulate.account import Account, Activity
from traceanalyzer.simulate.clock import QUEUE_DEPTH, Call, Clock, Ran, place_together
from traceanalyzer.simulate.program import Copy

A100 = gpus.find("a100-sxm4-80gb")


def calls(timed: object) -> list[tuple[str, int, int]]:
    return [(call.name, call.start, call.end) for call in timed.calls]  # type: ignore[attr-defined]


def test_two_kernels_one_queued_behind_the_other() -> None:
    # op 0..3, call 3..13, kernel 18..118; op 13..16, call 16..26, queued: 120..170.
    placed = place(a_pass(op(kernel(100)), op(kernel(50))))
    assert calls(placed[0]) == [("cudaLaunchKernel", 3, 13), ("cudaLaunchKernel", 16, 26)]
    assert ran(placed) == [(18, 118), (120, 170)]
    assert [(one.start, one.duration) for one in placed[0].ops] == [(0, 13), (13, 13)]
    account = Account(A100)
    assert booked(account, placed) == {("decode", "idle_latency"): 2, ("decode", "no_tensor_core"): 150}
    assert (account.start, account.end, account.kernel_busy) == (18, 170, 150)


def test_a_short_kernel_leaves_the_card_waiting_for_the_host() -> None:
    # The first kernel ends at 22, in the middle of the second call (16..26); the second starts at 26 + 5.
    placed = place(a_pass(op(kernel(4)), op(kernel(50))))
    assert ran(placed) == [(18, 22), (31, 81)]
    account = Account(A100)
    assert booked(account, placed) == {("decode", "idle_launch"): 9, ("decode", "no_tensor_core"): 54}
    assert {key[1]: ns for key, ns in account.causes.items() if ns} == {"launch_call": 4, "launch_latency": 5}


def test_host_time_of_ops_before_the_call_is_launching_too() -> None:
    # Op from 13, its own time until 113: call 113..123, kernel at 128.
    placed = place(a_pass(op(kernel(4)), op(kernel(50), host=100)))
    assert ran(placed) == [(18, 22), (128, 178)]
    account = Account(A100)
    assert booked(account, placed)["decode", "idle_launch"] == 106
    assert {key[1]: ns for key, ns in account.causes.items() if ns} == {
        "host_ops": 91, "launch_call": 10, "launch_latency": 5,
    }  # fmt: skip


def test_a_blocking_copy_makes_the_host_start_over() -> None:
    # Kernel 18..118. Copy: op 13..16, call 16..26, copy 120..140; the wait returns 3,000 ns after it.
    placed = place(a_pass(op(kernel(100)), op(Copy("DtoH", 8, 20, blocking=True)), op(kernel(50))))
    assert calls(placed[0])[1:3] == [("cudaMemcpyAsync", 16, 26), ("cudaStreamSynchronize", 26, 3_140)]
    # Then op 3140..3143, call ..3153, kernel at 3158.
    assert ran(placed) == [(18, 118), (120, 140), (3_158, 3_208)]
    account = Account(A100)
    assert booked(account, placed) == {
        ("decode", "idle_latency"): 2, ("decode", "idle_sync"): 3_018, ("decode", "memcpy"): 20,
        ("decode", "no_tensor_core"): 150,
    }  # fmt: skip
    assert account.causes["decode", "sync"] == 3_000


def test_host_time_between_passes() -> None:
    # The pass ends for the host at 13; its kernel at 22; 200 ns of scheduling until 213; call 216..226; kernel 231.
    first, second = a_pass(op(kernel(4)), phase="prefill", host_after_ns=200), a_pass(op(kernel(50)))
    placed = place(first, second)
    assert ran(placed) == [(18, 22), (231, 281)]
    # The gap counts for the pass that follows.
    assert booked(Account(A100), placed) == {
        ("decode", "idle_host"): 191, ("decode", "idle_launch"): 18, ("decode", "no_tensor_core"): 50,
        ("prefill", "no_tensor_core"): 4,
    }  # fmt: skip


def test_waiting_for_the_card_and_then_scheduling() -> None:
    # sync_after: the kernel ends at 118, the call returns at 3118; scheduling to 3318; call 3321..3331; kernel 3336.
    placed = place(a_pass(op(kernel(100)), sync_after=True, host_after_ns=200), a_pass(op(kernel(50))))
    assert ran(placed)[1] == (3_336, 3_386)
    assert booked(Account(A100), placed) == {
        ("decode", "idle_sync"): 3_000, ("decode", "idle_host"): 200, ("decode", "idle_launch"): 18,
        ("decode", "no_tensor_core"): 150,
    }  # fmt: skip


def test_one_call_replays_a_graph() -> None:
    # Op and kernel 18..118; graph call 13..53; its kernels 120..130, 132..142, 144..154.
    placed = place(a_pass(op(kernel(100)), graph=(kernel(10),) * 3))
    assert ran(placed) == [(18, 118), (120, 130), (132, 142), (144, 154)]
    assert [one.node for one in placed[0].ran] == [0, 1, 2, 3]
    assert len({one.correlation for one in placed[0].ran[1:]}) == 1
    # A graph on an idle card: called 0..40, starts at 45. The same shape is the same graph, another one another.
    placed = place(a_pass(graph=(kernel(10),) * 2), a_pass(graph=(kernel(10),) * 2), a_pass(graph=(kernel(10),) * 3))
    assert ran(placed)[:4] == [(45, 55), (57, 67), (85, 95), (97, 107)]
    assert [timed.graph for timed in placed] == [1, 1, 2]
    ledger = booked(Account(A100), placed)
    # Second graph: called 40..80, so idle from 67 to 85; third: 80..120, idle from 107 to 125.
    assert ledger == {
        ("decode", "idle_graph_launch"): 36, ("decode", "idle_latency"): 8, ("decode", "no_tensor_core"): 70,
    }  # fmt: skip


def test_the_launch_queue_is_finite() -> None:
    long = tuple(op(kernel(1_000), host=0) for _ in range(QUEUE_DEPTH + 2))
    (timed,) = place(a_pass(*long))
    # Call number 1024 (from 0) waits until kernel 0 has started, which it has long since; call 1025 for kernel 1.
    assert timed.calls[QUEUE_DEPTH].end == QUEUE_DEPTH * 10 + 10
    slow = tuple(op(kernel(100_000), host=0) for _ in range(QUEUE_DEPTH + 2))
    (timed,) = place(a_pass(*slow))
    assert timed.calls[QUEUE_DEPTH + 1].end == timed.ran[1].start == 15 + 100_002


def test_ranks_wait_for_the_slowest_and_end_together() -> None:
    reduce = kernel(40, role="comm", flops=None, bytes=None, communication=True)
    quick, slow = a_pass(op(kernel(100)), op(reduce), op(kernel(7))), a_pass(op(kernel(130)), op(reduce), op(kernel(7)))
    placed = place_together([Clock(COSTS), Clock(COSTS, 1_000)], 0, [quick, slow])
    # Rank 0 comes at 120, rank 1 at 1000 + 18 + 130 + 2 = 1150: both end at 1190.
    assert ran(placed[:1]) == [(18, 118), (120, 1_190), (1_192, 1_199)]
    assert ran(placed[1:]) == [(1_018, 1_148), (1_150, 1_190), (1_192, 1_199)]
    assert [timed.ran[1].waited for timed in placed] == [1_030, 0]
    with pytest.raises(ValueError, match="in step"):
        place_together([Clock(COSTS), Clock(COSTS)], 0, [quick, a_pass(op(kernel(1)))])


def test_tensor_core_time_splits_by_flops_and_bytes() -> None:
    # A100: 312 TFLOP/s bf16 and 2039 GB/s. 312e6 FLOPs take 1,000 ns, 4.078e6 bytes 2,000 ns, of 5,000 ns.
    both = booked(Account(A100), place(a_pass(op(matrix(5_000, 312e6, 4.078e6)))))
    assert both == {
        ("decode", "tensor_core_useful"): 1_000, ("decode", "tensor_core_memory"): 1_000,
        ("decode", "tensor_core_other"): 3_000,
    }  # fmt: skip
    no_bytes = booked(Account(A100), place(a_pass(op(matrix(5_000, 312e6, None)))))
    assert no_bytes == {("decode", "tensor_core_useful"): 1_000, ("decode", "tensor_core_unknown"): 4_000}
    assert booked(Account(A100), place(a_pass(op(matrix(5_000, None, 1.0))))) == {
        ("decode", "tensor_core_unknown"): 5_000
    }
    # Faster than the sheet: all of it useful.
    assert booked(Account(A100), place(a_pass(op(matrix(500, 312e6, 1.0))))) == {("decode", "tensor_core_useful"): 500}


def test_streams_overlap_by_precedence() -> None:
    def activity(start: int, end: int, **facts: object) -> Activity:
        work = facts.pop("work", None) or kernel(end - start, **facts)
        return Activity(Ran(work, start, end, 0, 0, 1, 0), "decode")

    tensor = matrix(100, 0.0, 0.0)
    account = Account(A100)
    account.settle([
        activity(0, 100, communication=True), activity(20, 60), activity(50, 150, work=tensor),
        activity(100, 200, work=tensor), activity(140, 260, work=Copy("DtoD", 8, 120)),
    ])  # fmt: skip
    # 0-20 comm, 20-50 plain, 50-200 tensor (100-150 shared by two), 200-260 copy; nothing idle.
    assert account.close() == {
        ("decode", "communication"): 20, ("decode", "memcpy"): 60, ("decode", "no_tensor_core"): 30,
        ("decode", "tensor_core_other"): 150,
    }  # fmt: skip
    assert account.kernel_busy == 200


def test_activity_is_booked_in_order_of_start_whatever_the_order_of_calls() -> None:
    # Two streams: the first stream's second kernel starts after the other stream's one, though called before it.
    late, early = kernel(5, stream=7), kernel(5, stream=20)
    placed = place(a_pass(op(kernel(1_000, stream=7)), op(late), op(early)))
    assert ran(placed) == [(18, 1_018), (1_020, 1_025), (44, 49)]
    assert booked(Account(A100), placed) == {("decode", "idle_latency"): 2, ("decode", "no_tensor_core"): 1_005}


def test_numbers_of_calls_and_ops_never_repeat() -> None:
    placed = place(*(a_pass(op(op(kernel(5))), sync_after=True) for _ in range(3)))
    made: list[Call] = [call for timed in placed for call in timed.calls]
    assert [call.correlation for call in made] == [1, 2, 3, 4, 5, 6]
    externals = [number for timed in placed for number in (timed.external, *(one.external for one in timed.ops))]
    assert externals == list(range(1, 10))
    # A launch belongs to the innermost op.
    assert [one.external for timed in placed for one in timed.ran] == [3, 6, 9]

"""Parts of communication and pipeline bubbles, on timelines made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.analysis import lines
from tests.analysis.ranks.made import PERIOD, comm, kernel, rank, step
from traceanalyzer.analysis.ranks import Ranks, compare
from traceanalyzer.analysis.timeline import Timeline

COUNT = 10


def compared(*devices: Timeline) -> Ranks:
    found = compare(devices)
    assert found is not None
    return found


def test_each_instant_of_communication_is_one_of_its_parts() -> None:
    """Rank 0 comes 200 us early and computes on another stream for 100 us of that, and for 50 us of the transfer."""
    early, late = [], []
    for place in range(COUNT):
        at = place * PERIOD + place**2 * 1_000
        early += [kernel(at, 100_000, step=place), {**comm(at + 100_000, 300_000), "step": place}]
        early += [kernel(at + 250_000, 100_000, stream=9, step=place)]
        late += [kernel(at, 300_000, step=place), {**comm(at + 300_000, 100_000), "step": place}]
    starts = [place * PERIOD + place**2 * 1_000 for place in range(COUNT)]
    steps = [{"phase": "decode", "start": start, "end": start + 400_000} for start in starts]
    found = compared(rank(0, early, steps), rank(1, late, steps))
    first, second = found.shares
    assert (first.comm_ns, first.compute_ns) == (COUNT * 300_000, COUNT * 200_000)
    assert first.hidden_ns == COUNT * 100_000
    assert first.waiting_ns == COUNT * 150_000  # 200 us, of which a kernel hides 50
    assert first.exposed_ns == COUNT * 50_000
    assert (second.hidden_ns, second.waiting_ns, second.exposed_ns) == (0, 0, COUNT * 100_000)
    assert second.late_ns == 200_000
    assert (first.last, second.last) == (0, COUNT)
    assert (first.delay_ns, second.delay_ns) == (0, COUNT * 200_000)
    assert found.straggler is not None
    assert (found.straggler.share, found.straggler.cause) == (second, "compute")
    assert found.imbalance_compute == pytest.approx(300 / 250)


def test_without_matches_waiting_is_not_known() -> None:
    rows = [comm(place * PERIOD, 100_000) for place in range(COUNT)]
    other = [comm(place * (PERIOD + 77_000) + 300_000 * (place % 3), 100_000) for place in range(COUNT)]
    found = compared(rank(0, rows, []), rank(1, other, []))
    assert [share.waiting_ns for share in found.shares] == [None, None]
    assert [share.exposed_ns for share in found.shares] == [COUNT * 100_000] * 2


def test_bubbles_are_idle_or_inside_a_receive() -> None:
    """Stage 1 computes 400 us of 1 ms, receives for 500 us before that, and then has nothing for 100 us."""
    first, second = [], []
    for place in range(COUNT):
        at = place * PERIOD
        first += [kernel(at, 900_000, step=place), {**comm(at + 900_000, 100_000, "send_recv"), "step": place}]
        second += [{**comm(at, 500_000, "send_recv"), "step": place}, kernel(at + 500_000, 400_000, step=place)]
    found = compared(
        rank(0, first, [step(place, PERIOD) for place in range(COUNT)]),
        rank(1, second, [step(place, 900_000) for place in range(COUNT)]),
    )
    sending, receiving = found.bubbles
    assert (sending.idle_ns, sending.passing_ns) == (0, COUNT * 100_000)
    assert (receiving.idle_ns, receiving.passing_ns) == ((COUNT - 1) * 100_000, COUNT * 500_000)
    assert receiving.share == pytest.approx((COUNT * 500 + (COUNT - 1) * 100) / (COUNT * 1000 - 100))
    assert [share.passing_ns for share in found.shares] == [COUNT * 100_000, COUNT * 500_000]
    assert [share.exposed_ns for share in found.shares] == [0, 0]


def test_many_sends_in_a_step_exchange_experts() -> None:
    rows = [{**comm(place * 10_000, 5_000, "send_recv"), "step": place // 20} for place in range(100)]
    steps = [{"phase": "decode", "start": at * 200_000, "end": at * 200_000 + 195_000} for at in range(5)]
    found = compared(rank(0, rows, steps), rank(1, rows, steps))
    assert found.bubbles == ()
    assert [share.passing_ns for share in found.shares] == [0, 0]


def test_devices_of_one_process_have_one_clock() -> None:
    rows = [comm(place * PERIOD + place**2 * 1_000, 100_000) for place in range(COUNT)]
    line = rank(0, rows, [])
    found = compared(line, replace(line, device=lines.device(rank=0, device=1)))
    assert [share.member.by for share in found.shares] == ["reference", "host"]
    assert found.spread_ns == 0


def test_a_cpu_has_no_ranks_to_compare() -> None:
    line = lines.line([kernel(0, 10)], info=lines.device("cpu"))
    assert compare([line, line]) is None


def test_a_collective_of_some_members_is_waited_in_though_none_is_of_all() -> None:
    """Rank 1 shares the first half of rank 0's collectives, coming 50 us later each, and rank 2 the second half."""
    starts = [place * PERIOD + place**2 * 1_000 for place in range(4 * COUNT)]
    whole = [comm(at, 150_000) for at in starts]
    half = [comm(at + 50_000, 100_000) for at in starts]
    found = compared(rank(0, whole, []), rank(1, half[: 2 * COUNT], []), rank(2, half[2 * COUNT :], []))
    assert [share.waiting_ns for share in found.shares] == [4 * COUNT * 50_000, 0, 0]
    for share in found.shares:
        assert share.comm_ns == share.hidden_ns + share.exposed_ns + (share.waiting_ns or 0) + share.passing_ns
    assert (found.imbalance_compute, found.imbalance_busy) == (None, None)

"""Every shared trace, row by row, against an independent reading; and device times against the oracle."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SHARED
from tests.trace.plain import assert_same, events_of, text_of
from traceanalyzer.errors import TraceAnalyzerError
from traceanalyzer.trace import Trace, read_trace

Expected = dict[str, dict[str, Any]]
LISTED = SHARED / "traces" / "expected.json"
NAMES = [name for name in json.loads(LISTED.read_text()) if name != "_about"] if LISTED.is_file() else ["none"]
DAMAGED = [name for name in NAMES if name.startswith("broken-") and not name.endswith(".zip")]
REFUSED = [
    name for name in NAMES if name.endswith((".sqlite", ".csv", ".zip")) or name.startswith(("mtia-", "chrome-"))
]
WHOLE = [name for name in NAMES if name not in DAMAGED and name not in REFUSED]


@pytest.mark.parametrize("name", WHOLE)
def test_every_row_is_what_the_file_says(traces: Path, name: str) -> None:
    path = traces / name
    trace = read_trace(path)
    assert_same(trace, events_of(text_of(path)))
    damage = {note.code for note in trace.quality if note.severity != "info"}
    assert not damage, "an undamaged file must not be read through the salvage path"


def test_every_given_trace_is_covered(traces: Path, expected: Expected) -> None:
    assert sorted([*WHOLE, *DAMAGED, *REFUSED]) == sorted(expected)
    assert len(WHOLE) >= 36


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_analysable_trace_gets_one_clear_line(traces: Path, expected: Expected, name: str) -> None:
    assert expected[name]["exit"] == 2
    with pytest.raises(TraceAnalyzerError) as error:
        read_trace(traces / name)
    assert error.value.hint
    assert "\n" not in str(error.value)
    assert name in error.value.message
    assert str(traces) not in str(error.value)


def test_refusals_name_what_the_file_holds(traces: Path) -> None:
    def message(name: str) -> str:
        with pytest.raises(TraceAnalyzerError) as error:
            read_trace(traces / name)
        return str(error.value)

    assert "MTIA" in message("mtia-inference.json.gz")
    assert "1313 mtia_ccp_events" in message("mtia-inference.json.gz")
    assert "23 PERF" in message("chrome-b-e-i-c-events.json")
    assert "zip archive" in message("broken-zip-container.json.zip")
    assert "Nsight" in message("nsys-h100-2gpu.sqlite")
    assert "nsys stats" in message("nsys-stats-rtx5090-decode.csv")


def _counts(trace: Trace) -> dict[str, int]:
    return {note.code: note.count for note in trace.quality}


def test_damaged_traces_are_read_as_far_as_they_are_whole(traces: Path) -> None:
    controls = read_trace(traces / "broken-control-and-non-utf8.json")
    assert _counts(controls) == {"control_characters": 1}
    mended = text_of(traces / "broken-control-and-non-utf8.json").replace(b"\x01", "\ufffd".encode())
    assert_same(controls, events_of(mended))

    not_finite = read_trace(traces / "broken-inf-nan.json")
    assert _counts(not_finite) == {"non_finite_numbers": 7}
    text = text_of(traces / "broken-inf-nan.json")
    mended, count = re.subn(rb": (?:inf|-nan|NaN)\b", b": null", text)
    assert count == 7
    assert_same(not_finite, events_of(mended))

    cut = read_trace(traces / "broken-truncated.json")
    text = text_of(traces / "broken-truncated.json")
    boundary = text.rindex(b"},\n  {")
    events = json.loads(text[: boundary + 1] + b"]}", parse_float=Decimal)["traceEvents"]
    assert_same(cut, events)
    assert _counts(cut) == {"truncated_json": 1}
    packed = read_trace(traces / "broken-truncated.json.gz")
    assert packed.source.events > 1000
    assert _counts(packed) == {"truncated_json": 1, "truncated_compression": 1}


def test_the_same_events_in_another_wrapping_are_the_same_trace(traces: Path, expected: Expected) -> None:
    for name, entry in expected.items():
        if "same_as" in entry:
            odd, plain = read_trace(traces / name), read_trace(traces / entry["same_as"])
            assert odd.strings == plain.strings
            for table in ("kernels", "launches", "ops", "annotations", "syncs", "counters"):
                assert getattr(odd, table).equals(getattr(plain, table))


def _union(intervals: list[tuple[int, int]]) -> int:
    total, reach = 0, -(2**63)
    for start, end in sorted(intervals):
        total += max(0, end - max(start, reach))
        reach = max(reach, end)
    return total


def test_device_times_agree_with_the_oracle_to_the_nanosecond(traces: Path, oracle: Path) -> None:
    values = json.loads((oracle / "busy-idle.json").read_text(), parse_float=Decimal)
    devices = 0
    for name, by_device in values.items():
        if name.startswith("_"):
            continue
        kernels = read_trace(traces / name).kernels
        assert {str(device) for device in kernels["device"].unique()} == set(by_device), name
        for device, truth in by_device.items():
            rows = kernels[kernels["device"] == int(device)]
            starts, durations = rows["start_ns"].tolist(), rows["duration_ns"].tolist()
            intervals = [(s, s + d) for s, d in zip(starts, durations, strict=True)]
            kinds = rows["kind"].tolist()
            alone = [interval for interval, kind in zip(intervals, kinds, strict=True) if kind == 0]
            span = max(end for _, end in intervals) - min(start for start, _ in intervals)
            busy = _union(intervals)
            found = {
                "span_us": Decimal(span) / 1000,
                "busy_us": Decimal(busy) / 1000,
                "idle_us": Decimal(span - busy) / 1000,
                "kernel_busy_us": Decimal(_union(alone)) / 1000,
                "sum_of_kernel_us": Decimal(sum(end - start for start, end in alone)) / 1000,
                "kernels": kinds.count(0),
                "memcpy": kinds.count(1),
                "memset": kinds.count(2),
            }
            assert found == {key: truth[key] for key in found}, (name, device)
            devices += 1
    assert devices == 28


def test_epoch_times_with_decimals_keep_their_nanoseconds(traces: Path) -> None:
    trace = read_trace(traces / "v100-nanosecond-unit.pt.trace.json.gz")
    assert 1712195495534685269 in set(trace.kernels["start_ns"].tolist()) | set(trace.launches["start_ns"].tolist()) | (
        set(trace.ops["start_ns"].tolist())
    )
    assert trace.metadata.recorded_at_ns is not None
    assert trace.metadata.recorded_at_ns // 10**9 in range(1712195490, 1712195500)


def test_no_unknown_metadata_is_kept(traces: Path) -> None:
    path = traces / "h100-hf-qwen1.5-forward.json.gz"
    assert b"hf_EXAMPLETOKENREMOVED" in gzip.decompress(path.read_bytes()), "the trace with the planted token"
    trace = read_trace(path)
    whole = repr(trace) + "".join(trace.strings) + "".join(trace.threads) + repr(trace.metadata)
    for secret in ("EXAMPLETOKEN", "HF_TOKEN", "moca", "docker.io", "ab5ece529443"):
        assert secret not in whole
    mast = read_trace(traces / "v100-nanosecond-unit.pt.trace.json.gz")
    assert mast.metadata.host_hash == hashlib.sha256(b"host.example").hexdigest()[:12]
    text = repr(mast.metadata) + "".join(mast.strings) + "".join(mast.threads)
    for secret in ("host.example", "sraikund", "torchx-pytorch", "tsp_pnb"):
        assert secret not in text


def test_metadata_of_known_traces(traces: Path) -> None:
    h100 = read_trace(traces / "h100-hf-qwen1.5-forward.json.gz").metadata
    device = h100.devices[0]
    assert (device.name, device.num_sms, device.compute_major, device.compute_minor) == (
        "NVIDIA H100 80GB HBM3", 132, 9, 0,
    )  # fmt: skip
    assert h100.base_time_ns == 1751410836000000000
    assert h100.producer == {"cupti": "22", "cuda_runtime": "12040", "cuda_driver": "12090"}
    assert (h100.record_shapes, h100.with_stack, h100.rank) == (True, True, None)
    old = read_trace(traces / "v100-compute-properties.json").metadata
    assert len(old.devices) == 4
    assert (old.devices[3].id, old.devices[0].num_sms, old.devices[0].compute_major) == (3, 80, 7)
    assert old.record_shapes is None
    rank = read_trace(traces / "b200-vllm-eager-prefill.json.gz").metadata
    assert (rank.rank, rank.world_size) == (0, 8)
    amd = read_trace(traces / "mi300x-vllm-decode-full-graph.json.gz").metadata
    assert (amd.devices[2].name, amd.devices[2].warp_size, amd.devices[2].num_sms) == ("", 64, 304)
    assert (amd.producer or {})["roctracer"] == "4.1"

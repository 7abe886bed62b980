"""Damaged traces: whole events survive, losses and repairs are counted, and nothing ever ends in a traceback."""

from __future__ import annotations

import gzip
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard

from tests.trace.made import document, events
from tests.trace.plain import assert_same, events_of
from traceanalyzer import analyze
from traceanalyzer.errors import TraceAnalyzerError
from traceanalyzer.trace import Trace, read_trace, salvage
from traceanalyzer.trace.kineto import read_kineto
from traceanalyzer.trace.salvage import repair

WEEDS = (b"\x00", b"\xff\xfe", b'"', b"}", b"]", b"{", b"[", b"\\", b"nan", b"null,", b"},{", b"1e999", b"\\ud800")


def kernel(name: str, ts: object = 10, dur: object = 1, **args: object) -> str:
    body = {"device": 0, "stream": 7, "correlation": 1, **args}
    event = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": body}
    return json.dumps(event)


def read(tmp_path: Path, text: str | bytes, block: int = 1 << 21) -> Trace:
    path = tmp_path / "trace.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_kineto(path, block)


def wrapped(*bodies: str) -> str:
    return '{"schemaVersion": 1, "traceEvents": [\n' + ",\n".join(bodies) + '\n], "baseTimeNanoseconds": 9}'


def counts(trace: Trace) -> dict[str, int]:
    return {note.code: note.count for note in trace.quality if note.severity != "info"}


def names(trace: Trace) -> list[str]:
    return [trace.text(code) for code in trace.kernels["name"]]


@pytest.mark.parametrize("block", [1, 50, 300, 1 << 21])
@pytest.mark.parametrize(
    ("damage", "code"),
    [
        ('{"ph": "X", "cat": "kernel", "name": "un"escaped", "ts": 1, "dur": 1}', "damaged_events"),
        ('{"ph": "X", "cat": "kernel", "name": "x", "ts": 1.2.3, "dur": 1}', "damaged_events"),
        ('{"ph": "X", "cat": "kernel", "na', "damaged_events"),
        ('{"ph": "X", "cat": "kernel", "args": {"a": [1, 2}}', "damaged_events"),
        ('{"ph": X}', "damaged_events"),
        ('{"ph": "X", "cat": "kernel", "name": "x", "pid": 0, "tid": 0, "ts": 1, "dur": 1', "damaged_events"),
    ],
)
def test_a_damaged_event_costs_only_itself(tmp_path: Path, damage: str, code: str, block: int) -> None:
    before, after = [kernel(f"a{i}", 10 + i) for i in range(5)], [kernel(f"b{i}", 20 + i) for i in range(5)]
    trace = read(tmp_path, wrapped(*before, damage, *after), block)
    assert names(trace) == [f"a{i}" for i in range(5)] + [f"b{i}" for i in range(5)]
    assert counts(trace) == {code: 1}
    assert trace.metadata.base_time_ns == 9


@pytest.mark.parametrize("position", [0, 3, 9])
def test_damage_at_either_end_of_the_list(tmp_path: Path, position: int) -> None:
    bodies = [kernel(f"k{i}", 10 + i) for i in range(10)]
    kept = [f"k{i}" for i in range(10) if i != position]
    bodies[position] = bodies[position].replace('"ts": ', '"ts": *')
    for block in (1, 200, 1 << 21):
        trace = read(tmp_path, wrapped(*bodies), block)
        assert names(trace) == kept
        assert counts(trace) == {"damaged_events": 1}
        assert trace.metadata.base_time_ns == 9


@pytest.mark.parametrize(
    ("text", "repaired", "code"),
    [
        (b'"a\x01b\x00"', '"a\ufffdb\ufffd"', {"control_characters": 2}),
        (b'"a\nb"', '"a\ufffdb"', {"control_characters": 1}),
        (b'"a\xffb\xc3"', '"a\ufffdb\ufffd"', {"invalid_utf8": 2}),
        ('"\ufffd"'.encode() + b'"\xff"', '"\ufffd""\ufffd"', {"invalid_utf8": 1}),
        (b'{"a": nan, "b": -inf, "c": NaN, "d":Infinity, "e": -nan(ind), "f": 1.#INF}',
         '{"a": null, "b": null, "c": null, "d":null, "e": null, "f": null}', {"non_finite_numbers": 6}),
        (b'{"nan inf": "-inf, nan"}', '{"nan inf": "-inf, nan"}', {}),
        (rb'"C:\Users\x \\n \" \u00e9 \u12"', r'"C:\\Users\\x \\n \" \u00e9 \\u12"', {"invalid_escapes": 3}),
        (rb'"\ud800 \ud83d\ude00 \udc00"', '"\ufffd \\ud83d\\ude00 \ufffd"', {"invalid_escapes": 2}),
    ],
)  # fmt: skip
def test_repairs(text: bytes, repaired: str, code: dict[str, int]) -> None:
    found, made = repair(text)
    assert found.decode() == repaired
    assert {key: count for key, count in made.items() if count} == code


def test_lists_that_never_end_take_time_in_proportion_to_their_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repaired = 0

    def counting(text: bytes) -> tuple[bytes, Counter[str]]:
        nonlocal repaired
        repaired += len(text)
        return repair(text)

    monkeypatch.setattr(salvage, "repair", counting)
    unfinished = '{"ph": "X", "p": "' + "x" * 900 + '", "a": [{}'
    text = wrapped(*[unfinished] * 600, *[kernel("k", 10 + i) for i in range(10)])
    begin = time.process_time()
    assert names(read(tmp_path, text)) == ["k"] * 10
    assert repaired < 40 * len(text)
    assert time.process_time() - begin < 8


def test_an_event_that_follows_a_list_without_end_counts_once(tmp_path: Path) -> None:
    text = wrapped(kernel("a"), '{"a": [{}', '{"b": x, ' + kernel("b"), kernel("c"))
    assert names(read(tmp_path, text)) == ["a", "b", "c"]


def test_a_second_list_of_events_is_noted(tmp_path: Path) -> None:
    trace = read(tmp_path, wrapped(kernel("a"))[:-1] + ', "traceEvents": [' + kernel("b") + "]}")
    assert names(trace) == ["a"]
    assert [(note.code, note.detail) for note in trace.quality if note.severity != "info"] == [
        ("damaged_metadata", "traceEvents")
    ]


@pytest.mark.parametrize(
    ("key", "values", "field"),
    [
        ("numSms", [-5, 0, True, 10**6, 10**400, "many"], "num_sms"),
        ("multiProcessorCount", [-5], "num_sms"),
        ("totalGlobalMem", [-1, 0, 2**50 + 1, False], "memory_bytes"),
        ("computeMajor", [0, -9, 100, True], "compute_major"),
        ("computeMinor", [-1, 100], "compute_minor"),
        ("warpSize", [0, -32, 10**9], "warp_size"),
    ],
)
def test_device_properties_that_cannot_be_true_are_not_known(
    tmp_path: Path, key: str, values: list[object], field: str
) -> None:
    for value in values:
        entry = json.dumps({"id": 0, "name": "n" * 300, key: value})
        trace = read(tmp_path, wrapped(kernel("k"))[:-1] + f', "deviceProperties": [{entry}]}}')
        (device,) = trace.metadata.devices
        assert getattr(device, field) is None
        assert device.name == "n" * 200
        assert [(note.code, note.detail) for note in trace.quality if note.severity != "info"] == [
            ("damaged_metadata", key)
        ]


@pytest.mark.parametrize("value", [-3, 2**31, -(2**63), True])
def test_ids_that_cannot_be_true_are_not_known(tmp_path: Path, value: int) -> None:
    top = json.dumps({"distributedInfo": {"rank": value, "world_size": -2}, "deviceProperties": [{"id": value}]})
    trace = read(tmp_path, wrapped(kernel("k", device=int(value) if value is True else value))[:-1] + ", " + top[1:])
    assert trace.metadata.rank is None
    assert trace.metadata.world_size is None
    assert trace.metadata.devices[0].id == -1
    assert trace.kernels["device"].tolist() == [1 if value is True else -1]
    assert counts(trace) == {"odd_fields": 3 if value is True else 4}


def test_repaired_events_keep_what_is_known(tmp_path: Path) -> None:
    good = kernel("k", 10, 2)
    body = good.replace('"k"', '"bad\x02name"').replace('"device": 0', '"device": 0, "blocks per SM": -inf')
    trace = read(tmp_path, wrapped(good, body, kernel("k", 20, 2)))
    assert names(trace) == ["k", "bad\ufffdname", "k"]
    assert trace.kernels["duration_ns"].tolist() == [2000] * 3
    assert np.isnan(trace.kernels["blocks_per_sm"]).all()
    assert counts(trace) == {"control_characters": 1, "non_finite_numbers": 1}


def test_bytes_that_are_no_utf8_are_seen_even_in_skipped_events(tmp_path: Path) -> None:
    skipped = '{"ph": "X", "cat": "python_function", "name": "f?", "ts": 1, "dur": 1}'
    text = wrapped(kernel("a"), skipped, kernel("b", 20)).encode().replace(b"f?", b"f\xff")
    trace = read(tmp_path, text)
    assert names(trace) == ["a", "b"]
    assert counts(trace) == {"invalid_utf8": 1}


def test_odd_values_of_fields_read_as_missing(tmp_path: Path) -> None:
    odd = kernel("odd", 10, 1, device=True, stream=[7], correlation={"a": 1}, grid="?", block=[1, 2], bytes=2**70)
    trace = read(tmp_path, wrapped(odd, kernel("fine", 20)))
    row = trace.kernels.iloc[0]
    assert (row["device"], row["stream"]) == (0, 7)  # where Kineto draws it: pid and tid
    assert (row["correlation"], row["bytes"], row["grid_x"], row["block_x"]) == (-1, -1, -1, -1)
    assert counts(trace) == {"odd_fields": 4}
    for body in ('{"ph": "X", "cat": 7, "ts": 1}', '{"ph": "X", "cat": "kernel", "name": null, "ts": 1, "dur": 1}'):
        assert names(read(tmp_path, wrapped(kernel("a", 5), body)))[-1] in ("a", "")


@pytest.mark.parametrize(
    ("ts", "dur", "code"),
    [
        (10, -1, "negative_duration"),
        (10, 18446744073709551.615, "absurd_duration"),
        (10, 1e300, "absurd_duration"),
        (10, 24 * 3600e6 + 1, "absurd_duration"),
        (10, None, "events_without_time"),
        ("soon", 1, "events_without_time"),
        (1e15, 1, "out_of_range"),
        (-(10**15), 1, "out_of_range"),
        (1e300, 1, "out_of_range"),
    ],
)
def test_impossible_times_are_left_out_and_counted(tmp_path: Path, ts: object, dur: object, code: str) -> None:
    good = [kernel(f"k{i}", 100 + i) for i in range(4)]
    trace = read(tmp_path, wrapped(*good[:2], kernel("bad", ts, dur), *good[2:]))
    assert names(trace) == ["k0", "k1", "k2", "k3"]
    assert [(n.code, n.count, n.detail) for n in trace.quality if n.severity != "info"] == [(code, 1, "kernels 1")]


def test_overlaps_and_orphans_are_noted_not_dropped(tmp_path: Path) -> None:
    launch = kernel("l", 1, 1).replace('"kernel"', '"cuda_runtime"')
    trace = read(
        tmp_path,
        wrapped(
            launch, kernel("a", 10, 5), kernel("b", 12, 5), kernel("c", 14, 1, stream=8), kernel("d", 30, 1),
            kernel("e", 40, 1, correlation=77), kernel("f", 50.5, 1, correlation=None),
        ),
    )  # fmt: skip
    found = {note.code: note.count for note in trace.quality}
    assert found == {"overlapping_kernels": 1, "kernels_without_launch": 1, "kernels_without_correlation": 1}
    assert names(trace) == ["a", "b", "c", "d", "e", "f"]


def test_kernels_recorded_twice_are_counted_once(tmp_path: Path) -> None:
    first = kernel("d", 30, 5)
    others = (
        kernel("e", 30, 5), kernel("d", 31, 5), kernel("d", 30, 6), kernel("d", 30, 5, stream=8),
        kernel("d", 30, 5, device=1), kernel("d", 30, 5, correlation=2), kernel("d", 30, 5, **{"graph node id": 4}),
    )  # fmt: skip
    trace = read(tmp_path, wrapped(first, *others, first, first))
    assert len(trace.kernels) == 1 + len(others)
    assert {note.code: note.count for note in trace.quality}["duplicate_kernels"] == 2
    trace = read(tmp_path, wrapped(kernel("z", 30, 0), kernel("z", 30, 0)))
    assert len(trace.kernels) == 2, "two kernels too short to be timed can share a start"


def test_a_file_of_copies_gives_the_report_of_one(tmp_path: Path) -> None:
    """A copy shares its launch with the first, like the kernels of a graph: it must not cost them their operator."""
    shapes = {"Input Dims": [[24, 64], [64, 96]], "Input type": ["c10::BFloat16"] * 2, "Concrete Inputs": ["", ""]}
    op = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 8, "args": shapes}
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 2, "dur": 1,
            "args": {"correlation": 1}}  # fmt: skip
    gemm = kernel("nvjet_tst_64x64_64x16_2x1_2cta_v_bz_TNT", 20.5, 3)
    trace = read(tmp_path, wrapped(json.dumps(op), json.dumps(call), gemm, gemm))
    (row,) = analyze([trace]).kernels
    assert (row.count, row.total_us, row.flops) == (1, 3.0, 2 * 24 * 96 * 64)


def test_begin_and_end_events_are_counted(tmp_path: Path) -> None:
    pair = '{"ph": "B", "cat": "cpu_op", "name": "x", "ts": 1}', '{"ph": "E", "name": "x", "ts": 2}'
    trace = read(tmp_path, wrapped(kernel("a", 10.5), *pair))
    assert {n.code: n.count for n in trace.quality}["begin_end_events"] == 2
    assert trace.ops.empty


def event_ends(text: bytes, count: int) -> list[int]:
    """Where each event of a minified trace ends, found by decoding one after the other."""
    decoder, position, ends = json.JSONDecoder(), text.index(b'"traceEvents":[') + len(b'"traceEvents":['), []
    plain = text.decode("ascii")
    for _ in range(count):
        _, position = decoder.raw_decode(plain, position)
        ends.append(position)
        position += 1
    return ends


def check_truncations(tmp_path: Path, step: int) -> None:
    made = events(4, 14)
    text = document(made, "minified", ascii_only=True)
    plain = events_of(text)
    ends = event_ends(text, len(made))
    list_end = ends[-1] + 1
    start = text.index(b'"traceEvents":[') + len(b'"traceEvents":[')
    for cut in range(0, len(text), step):
        if cut < start:
            with pytest.raises(TraceAnalyzerError):
                read(tmp_path, text[:cut])
            continue
        for block in (1 << 21, 37):
            trace = read(tmp_path, text[:cut], block)
            whole = sum(end <= cut for end in ends)
            assert trace.source.events == whole, cut
            assert counts(trace) == ({} if cut >= list_end else {"truncated_json": 1}), cut
        if whole:
            assert_same(trace, plain[:whole])


def test_a_cut_anywhere_keeps_every_whole_event(tmp_path: Path) -> None:
    check_truncations(tmp_path, 53)


@pytest.mark.soak
def test_a_cut_at_every_byte_keeps_every_whole_event(tmp_path: Path) -> None:
    check_truncations(tmp_path, 1)


def _zstd(text: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(text)


@pytest.mark.parametrize("pack", [gzip.compress, _zstd], ids=["gzip", "zstd"])
def test_a_cut_compressed_file_gives_what_came_out(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    text = wrapped(*(kernel(f"{random.Random(i).random()}", 10 + i) for i in range(4000))).encode()
    data = pack(text)
    path = tmp_path / "trace.json.gz"
    lengths = []
    for share in (0.2, 0.5, 0.9, 0.999):
        path.write_bytes(data[: int(len(data) * share)])
        try:
            trace = read_trace(path)
        except TraceAnalyzerError:
            lengths.append(0)
            continue
        assert counts(trace)["truncated_compression"] == 1
        assert counts(trace)["truncated_json"] == 1
        lengths.append(len(trace.kernels))
    assert lengths == sorted(lengths)
    assert lengths[-1] > 2000
    path.write_bytes(data)
    assert counts(read_trace(path)) == {}


def test_a_corrupted_gzip_keeps_what_came_out(tmp_path: Path) -> None:
    text = wrapped(*(kernel(f"{random.Random(i).random()}", 10 + i) for i in range(20_000))).encode()
    data = bytearray(gzip.compress(text))
    middle = len(data) // 2
    data[middle : middle + 64] = b"\xff" * 64
    path = tmp_path / "trace.json.gz"
    path.write_bytes(bytes(data))
    trace = read_trace(path)
    assert trace.source.bytes == len(data)
    assert len(trace.kernels) > 5000
    assert {"damaged_compression", "damaged_events", "invalid_utf8", "truncated_json"} & set(counts(trace))


def break_at_random(tmp_path: Path, seeds: range) -> None:
    """Random bytes overwritten, removed, doubled: a trace or one line."""
    for seed in seeds:
        rng = random.Random(seed)
        layout = rng.choice(("old kineto", "indent 2", "minified", "one line", "list"))
        text = bytearray(document(events(seed, 20), layout))
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(text))
            choice = rng.randrange(4)
            if choice == 0:
                text[at] = rng.randrange(256)
            elif choice == 1:
                del text[at : at + rng.randrange(1, 200)]
            elif choice == 2:
                text[at:at] = text[rng.randrange(len(text)) :][: rng.randrange(300)]
            else:
                text[at:at] = rng.choice(WEEDS)
        data = bytes(text)
        if rng.random() < 0.2:
            data = gzip.compress(data)
        try:
            trace = read(tmp_path, data, rng.choice((50, 500, 1 << 21)))
        except TraceAnalyzerError as error:
            assert "\n" not in str(error)
            continue
        for table in (trace.kernels, trace.launches, trace.ops, trace.annotations, trace.syncs):
            assert (table["duration_ns"] >= 0).all()
            assert (table["name"] >= 0).all()
            assert (table["name"] < len(trace.strings)).all()


def test_random_damage_never_ends_in_a_traceback(tmp_path: Path) -> None:
    break_at_random(tmp_path, range(150))


@pytest.mark.soak
def test_much_random_damage_never_ends_in_a_traceback(tmp_path: Path) -> None:
    break_at_random(tmp_path, range(1000, 4000))


def test_damage_in_the_header_and_the_footer(tmp_path: Path) -> None:
    text = wrapped(kernel("a", 10.5))
    odd = text.replace('"schemaVersion": 1', '"deviceProperties": [{"id": nan, "name": "G"}], "record_shapes": 1')
    assert read(tmp_path, odd).metadata.devices[0].name == "G"
    broken = text.replace('"schemaVersion": 1', '"deviceProperties": [{"id": }], "record_shapes": 1')
    trace = read(tmp_path, broken)
    found = [(note.code, note.detail) for note in trace.quality if note.severity != "info"]
    assert found == [("damaged_metadata", "deviceProperties")]
    assert trace.metadata.record_shapes is True
    assert names(trace) == ["a"]
    unbalanced = text.replace('"schemaVersion": 1', '"x": "un"quoted", "y": {{')
    assert names(read(tmp_path, unbalanced)) == ["a"]
    footer = re.sub(r"\}$", ', "junk": {{[', text)
    assert names(read(tmp_path, footer)) == ["a"]


@pytest.mark.parametrize("depth", [500, 2000, 200_000])
@pytest.mark.parametrize("category", ["cpu_op", "python_function"])
def test_absurd_nesting_costs_at_most_its_event(tmp_path: Path, depth: int, category: str) -> None:
    nested = "[" * depth + "]" * depth
    deep = f'{{"ph": "X", "cat": "{category}", "name": "d", "ts": 1, "dur": 1, "args": {{"Input Dims": {nested}}}}}'
    trace = read(tmp_path, wrapped(kernel("a"), deep, kernel("b", 20)))
    assert names(trace) == ["a", "b"]
    assert counts(trace) == ({} if depth == 500 else {"damaged_events": 1})
    header = wrapped(kernel("a")).replace('"schemaVersion": 1', '"deviceProperties": ' + nested)
    assert read(tmp_path, header).metadata.devices == ()

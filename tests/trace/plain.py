"""An independent, slow reading of a Kineto trace: `json.loads`, dictionaries and Decimal, one row a tuple.

It shares no code with the reader and knows only what the format says. Rows stand in the order of `trace/tables.py`.
"""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import zstandard

from traceanalyzer.trace import Trace

Row = tuple[Any, ...]
GPU = {"kernel": 0, "Kernel": 0, "gpu_memcpy": 1, "Memcpy": 1, "gpu_memset": 2, "Memset": 2}
LAUNCHES = {"cuda_runtime", "cuda_driver", "Runtime"}
OPS = {"cpu_op", "Operator"}
ANNOTATIONS = {"user_annotation": 0, "gpu_user_annotation": 1}


def text_of(path: Path) -> bytes:
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        return gzip.decompress(data)
    if data[:4] == b"\x28\xb5\x2f\xfd":
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return data.removeprefix(b"\xef\xbb\xbf")


def events_of(text: bytes) -> list[dict[str, Any]]:
    document = json.loads(text, parse_float=Decimal)
    return document if isinstance(document, list) else document["traceEvents"]


def _ns(microseconds: Any) -> int:
    exact = Decimal(microseconds) * 1000
    assert exact == exact.to_integral_value()
    return int(exact)


def _int(value: Any, default: int = -1) -> int:
    if isinstance(value, str):
        digits = value.removeprefix("stream ").removeprefix("GPU ")
        return int(digits, 0) if digits.strip() else default
    return default if value is None else int(value)


def _args(event: dict[str, Any]) -> dict[str, Any]:
    return event.get("args") or {}


def _external(args: dict[str, Any]) -> int:
    return _int(args.get("External id", args.get("external id")))


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _json(args: dict[str, Any], *keys: str) -> Any:
    return next((args[key] for key in keys if args.get(key) is not None), None)


def _kernel(event: dict[str, Any], args: dict[str, Any]) -> Row:
    grid, block = args.get("grid", [-1] * 3), args.get("block", [-1] * 3)
    return (
        event["name"], GPU[event["cat"]], _ns(event["ts"]), _ns(event["dur"]),
        _int(args.get("device", event["pid"])), _int(args.get("stream", event["tid"])), _int(args.get("correlation")),
        _external(args), _int(args.get("graph id")), _int(args.get("graph node id")), *grid, *block,
        _number(args.get("est. achieved occupancy %")), _number(args.get("blocks per SM")), _int(args.get("bytes")),
        _int(args.get("context")),
    )  # fmt: skip


def _annotation(event: dict[str, Any], args: dict[str, Any]) -> Row:
    on_gpu = event["cat"] == "gpu_user_annotation"
    return (
        event["name"], int(on_gpu), _ns(event["ts"]), _ns(event["dur"]),
        None if on_gpu else (str(event["pid"]), str(event["tid"])),
        _int(args.get("device", event["pid"])) if on_gpu else -1,
        _int(args.get("stream", event["tid"])) if on_gpu else -1, _external(args),
    )  # fmt: skip


def _op(event: dict[str, Any], args: dict[str, Any]) -> Row:
    shapes = (("Input Dims", "Input dims"), ("Input type",), ("Concrete Inputs",), ("Input Strides",))
    return (
        event["name"], (str(event["pid"]), str(event["tid"])), _ns(event["ts"]), _ns(event["dur"]), _external(args),
        *(_json(args, *keys) for keys in shapes), _int(args.get("Sequence number")),
    )  # fmt: skip


def _counters(event: dict[str, Any], args: dict[str, Any]) -> list[Row]:
    if event["ph"] == "C":
        return [
            (f"{event['name']} {key}", _ns(event["ts"]), _int(event["pid"]), float(value))
            for key, value in args.items()
        ]
    device = -1 if args.get("Device Type") == 0 else _int(args.get("Device Id"))
    labels = [label for label in ("Bytes", "Total Allocated", "Total Reserved") if args.get(label) is not None]
    return [(f"[memory] {label}", _ns(event["ts"]), device, float(args[label])) for label in labels]


def rows_of(events: list[dict[str, Any]]) -> dict[str, list[Row]]:
    """The rows of every table, sorted as the contract says; threads as (pid, tid) text."""
    tables: dict[str, list[Row]] = defaultdict(list)
    for event in events:
        args, category = _args(event), event.get("cat")
        if event["ph"] == "C" or (event["ph"] == "i" and event["name"] == "[memory]"):
            tables["counters"] += _counters(event, args)
        elif event["ph"] != "X":
            continue
        elif category in GPU:
            tables["kernels"].append(_kernel(event, args))
        elif category in LAUNCHES:
            thread = (str(event["pid"]), str(event["tid"]))
            ids = (_int(args.get("correlation")), _external(args))
            kernel = args.get("kernel") if isinstance(args.get("kernel"), str) else None
            launched = (kernel, args.get("grid"), args.get("block"))
            tables["launches"].append((event["name"], thread, _ns(event["ts"]), _ns(event["dur"]), *ids, *launched))
        elif category in OPS and event["name"].startswith("ProfilerStep#"):
            tables["annotations"].append(_annotation(event | {"cat": "user_annotation"}, args))
        elif category in OPS:
            tables["ops"].append(_op(event, args))
        elif category in ANNOTATIONS:
            tables["annotations"].append(_annotation(event, args))
        elif category == "cuda_sync":
            device, stream = _int(args.get("device", event["pid"])), _int(args.get("stream"))
            ids = (device, stream, _int(args.get("correlation")))
            tables["syncs"].append((event["name"], _ns(event["ts"]), _ns(event["dur"]), *ids))
    tables["kernels"].sort(key=lambda row: (row[4], row[2]))
    tables["launches"].sort(key=lambda row: row[2])
    tables["annotations"].sort(key=lambda row: row[2])
    tables["syncs"].sort(key=lambda row: row[1])
    return tables


def rows_read(trace: Trace) -> dict[str, list[Row]]:
    """The tables of a `Trace` in the same form."""
    threads: list[Any] = [tuple(label.split(" ")[0].split("/", 1)) for label in trace.threads] + [None]
    strings = [*trace.strings, None]
    shapes = [_loads(text) for text in trace.strings] + [None]

    def rows(name: str, skip: tuple[str, ...] = ()) -> list[Row]:
        table = getattr(trace, name)
        columns = []
        for column in table.columns:
            if column in skip:
                continue
            values = table[column].tolist()
            if column in ("name", "launched"):
                values = [strings[code] for code in values]
            elif column == "thread":
                values = [threads[code] for code in values]
            elif column in ("dims", "types", "concrete", "strides", "grid", "block") and name != "kernels":
                values = [shapes[code] for code in values]
            elif table[column].dtype.kind == "f":
                values = [None if math.isnan(value) else value for value in values]
            columns.append(values)
        return list(zip(*columns, strict=True))

    tables = {name: rows(name) for name in ("kernels", "launches", "annotations", "syncs", "counters")}
    return tables | {"ops": rows("ops", skip=("parent",))}


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def assert_same(trace: Trace, events: list[dict[str, Any]]) -> None:
    """Every row of every table is what the plain reading says, in the order that the contract says."""
    expected, found = rows_of(events), rows_read(trace)
    for name in ("launches", "annotations", "syncs"):
        assert found[name] == expected[name], name
    assert len(found["kernels"]) == len(expected["kernels"])
    for ours, plain in zip(found["kernels"], expected["kernels"], strict=True):
        assert ours[:16] == plain[:16]
        assert ours[18:] == plain[18:]
        for value, exact in zip(ours[16:18], plain[16:18], strict=True):  # single precision by contract
            assert (value is None) == (exact is None)
            assert value is None or math.isclose(value, exact, rel_tol=1e-6)
    assert sorted(found["counters"], key=repr) == sorted(expected["counters"], key=repr)
    assert [row[1] for row in found["counters"]] == sorted(row[1] for row in expected["counters"])
    first = {thread: index for index, thread in reversed(list(enumerate(dict.fromkeys(r[1] for r in found["ops"]))))}
    assert found["ops"] == sorted(expected["ops"], key=lambda row: (first[row[1]], row[2], -row[3]))
    assert trace.source.events == len(events)

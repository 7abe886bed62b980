"""Makes traces: events of every kind, in every layout that producers and tools write."""

from __future__ import annotations

import gzip
import json
import random
from decimal import Decimal
from typing import Any

import zstandard

Event = dict[str, Any]

HEADER: dict[str, Any] = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "Card", "totalGlobalMem": 1000, "computeMajor": 9, "numSms": 4}],
    "env": {"SECRET": "planted-secret", "cat": "kernel", "list": [{"ph": "X"}, {"ph": "X"}]},
}
FOOTER: dict[str, Any] = {"traceName": "/home/planted-user/x.json", "INFO": ["}, {", "],"], "baseTimeNanoseconds": 5}
LAYOUTS = ("old kineto", "new kineto", "indent 2", "indent 4", "one line", "minified", "tabs", "crlf", "list", "padded")


def events(seed: int, count: int) -> list[Event]:
    """`count` events of random kinds with hostile names; times are Decimal microseconds."""
    rng = random.Random(seed)
    return [_event(rng) for _ in range(count)]


def _event(rng: random.Random) -> Event:
    name = rng.choice((
        "aten::mm", "ProfilerStep#3", 'quote " inside', "}, {", "],", "back\\slash", "<b>&amp;</b>", "naïve \u2028 😀",
        'x"cat": "kernel"', "python_function", "void k<int, 4>(float*)", "line\nbreak", "nan", "",
    ))  # fmt: skip
    ts = Decimal(rng.randrange(10**15, 17 * 10**14)) + Decimal(rng.randrange(1000)) / 1000
    pid, tid = rng.choice((1, "1", 22)), rng.choice((3, "4"))
    base: Event = {"ph": "X", "cat": "cpu_op", "name": name, "pid": pid, "tid": tid,
                   "ts": Decimal(10**15) + ts % 10**6, "dur": Decimal(rng.randrange(10**6)) / 1000}  # fmt: skip
    number = rng.randrange(1000)
    kind = rng.randrange(9)
    if kind == 0:
        base |= {"cat": rng.choice(("kernel", "Kernel", "gpu_memcpy", "Memset")), "pid": 0, "tid": "stream 7"}
        base["args"] = {"External id": number, "correlation": number, "grid": [number, 1, 1], "block": [32, 1, 1],
                        "device": rng.choice((0, "1")), "stream": rng.choice((7, "0x1f")), "bytes": "4096",
                        "blocks per SM": 1.5, "est. achieved occupancy %": 25, "graph id": 3}  # fmt: skip
    elif kind == 1:
        base |= {"cat": rng.choice(("cuda_runtime", "cuda_driver", "Runtime"))}
        base["args"] = {rng.choice(("External id", "external id")): number, "correlation": number}
        if number % 2:  # ROCm says what is launched, on which grid
            base["args"] |= {
                "kernel": f"kernel {number}" if number % 3 else 7,
                "grid": [number, 1, 1],
                "block": [64, 1, 1],
            }
    elif kind == 2:
        base["args"] = {"Input Dims": [[number, 4], [], [[1, 2], [3]]], "Input type": ["float", "", "TensorList"],
                        "Concrete Inputs": ["", "[1, 2]", '"'], "Input Strides": [[4, 1], [], []],
                        "External id": number, "Sequence number": number,
                        "nested": [{"a": 1}, {"b": [{}, {}]}]}  # fmt: skip
    elif kind == 3:
        base |= {"cat": "python_function", "args": {"Python id": number, "Python parent id": None}}
    elif kind == 4:
        base |= {"cat": rng.choice(("user_annotation", "gpu_user_annotation")), "args": {"External id": number}}
    elif kind == 5:
        base |= {"cat": "cuda_sync", "args": {"stream": -1, "device": 0, "correlation": number}}
    elif kind == 6:
        base |= {"cat": "cpu_instant_event", "name": "[memory]", "ph": "i", "s": "t"}
        base["args"] = {"Bytes": -number, "Device Id": 0, "Device Type": number % 2, "Total Allocated": number}
        del base["dur"]
    elif kind == 7:
        base |= {"ph": "C", "name": "counter", "args": {"value": number}}
        del base["cat"], base["dur"]
    else:
        base |= {"ph": "f", "id": number, "cat": "ac2g", "bp": "e"}
        del base["dur"]
    return base


def _value(value: Any, **style: Any) -> str:
    """JSON with exact decimals."""
    if isinstance(value, Decimal):
        return str(value)
    marks: list[Decimal] = []

    def mark(number: Decimal) -> str:
        marks.append(number)
        return f"\0{len(marks) - 1}\0"

    text = json.dumps(value, default=mark, **style)
    for index, number in enumerate(marks):
        text = text.replace(f'"\\u0000{index}\\u0000"', str(number))
    return text


def _native(event: Event, one_key_a_line: bool, ascii_only: bool) -> str:
    keys = [f'"{k}": {_value(v, ensure_ascii=ascii_only)}' for k, v in event.items() if k != "args"]
    text = "  {\n    " + (",\n    " if one_key_a_line else ", ").join(keys)
    if "args" in event:
        args = [f'"{k}": {_value(v, ensure_ascii=ascii_only)}' for k, v in event["args"].items()]
        text += ',\n    "args": {\n      ' + (",\n      " if one_key_a_line else ",").join(args) + "\n    }"
    return text + "\n  }"


def document(made: list[Event], layout: str, ascii_only: bool = False) -> bytes:
    """The events as the text of a trace."""
    style: dict[str, Any] = {"ensure_ascii": ascii_only}
    whole = HEADER | {"traceEvents": made} | FOOTER
    if layout in ("old kineto", "new kineto"):
        body = ",\n".join(_native(event, layout == "new kineto", ascii_only) for event in made)
        head, tail = _value(HEADER, indent=2, **style)[:-2], _value(FOOTER, indent=2, **style)[2:]
        text = head + ',\n  "traceEvents": [\n' + body + "\n  ],\n" + tail
    elif layout.startswith("indent"):
        text = _value(whole, indent=int(layout[-1]), **style)
    elif layout == "minified":
        text = _value(whole, separators=(",", ":"), **style)
    elif layout == "tabs":
        text = _value(whole, indent="\t", **style)
    elif layout == "crlf":
        text = _value(whole, indent=2, **style).replace("\n", "\r\n") + "\r\n"
    elif layout == "list":
        text = _value(made, **style)
    elif layout == "padded":
        text = "\n\n  " + _value(whole, separators=(" ,  ", "  :     "), **style) + " \n"
    else:
        text = _value(whole, **style)
    return text.encode()


def packed(text: bytes, packing: str) -> bytes:
    """The text compressed or encoded in another way."""
    third = len(text) // 3
    parts = (text[:third], text[third : 2 * third], text[2 * third :])
    if packing == "gzip members":
        return b"".join(gzip.compress(part, 1) for part in parts) + b"\0" * 100
    if packing == "zstd frames":
        return b"".join(zstandard.ZstdCompressor().compress(part) for part in parts)
    if packing == "utf-8 bom":
        return b"\xef\xbb\xbf" + text
    if packing in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        return text.decode().encode(packing)
    return text


PACKINGS = ("plain", "gzip members", "zstd frames", "utf-8 bom", "utf-16", "utf-16-le", "utf-16-be", "utf-32")

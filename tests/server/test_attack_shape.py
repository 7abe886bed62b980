"""The look at a body's text: compared with a plain walk over every character, however the text is cut."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from traceanalyzer.server.inspection import Inspection, Shape
from traceanalyzer.server.problems import Problem
from traceanalyzer.server.settings import Limits

PLAIN = b'{"traceEvents":[{"ph":"X","name":"a","ts":1,"dur":1}]}'


@dataclass
class Walked:
    depth: int = 0
    longest: int = 0
    events: int = 0


def walked(text: str) -> Walked:
    """The deepest nesting, the longest string in bytes and the events: character by character."""
    found = Walked()
    event_depth = 3 if text.lstrip().startswith("{") else 2
    depth, at, string = 0, 0, None
    while at < len(text):
        char = text[at]
        if string is not None:
            if char == "\\":
                string += len(text[at : at + 2].encode())
                at += 2
                continue
            if char == '"':
                found.longest = max(found.longest, string)
                string = None
            else:
                string += len(char.encode())
        elif char == '"':
            string = 0
        elif char in "[{":
            depth += 1
            found.depth = max(found.depth, depth)
            found.events += char == "{" and depth == event_depth
        elif char in "]}":
            depth -= 1
        at += 1
    return found


def refused(text: bytes, cut: int, **limits: int) -> int:
    """The status that a text is refused with; 0 where it is not."""
    shape = Shape(Limits(**limits))
    try:
        for begin in range(0, len(text), cut):
            shape.feed(text[begin : begin + cut])
        shape.finish()
    except Problem as problem:
        return problem.status
    return 0


strings = st.text(st.sampled_from('a"\\{}[],:é\n') | st.characters(codec="utf-8"), max_size=40)
values = st.recursive(
    strings | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(strings, inner, max_size=4),
    max_leaves=25,
)
documents = st.dictionaries(strings, values, min_size=1, max_size=5) | st.lists(values, min_size=1, max_size=6)


@settings(max_examples=150, deadline=None)
@given(document=documents, ascii_only=st.booleans(), cut=st.integers(1, 700), many=st.integers(1, 40))
def test_depth_strings_and_events_are_those_of_a_plain_walk(
    document: object, ascii_only: bool, cut: int, many: int
) -> None:
    text = json.dumps([document] * many if isinstance(document, list) else {"x": [document] * many},
                      ensure_ascii=ascii_only)  # fmt: skip
    found, data = walked(text), text.encode()
    assert refused(data, cut, max_depth=found.depth) == 0
    assert refused(data, cut, max_depth=found.depth - 1) == 422
    assert refused(data, cut, max_events=found.events) == 0
    if found.events:
        assert refused(data, cut, max_events=found.events - 1) == 413
    if found.longest > 1:
        assert refused(data, cut, max_string_bytes=found.longest) == 0
        assert refused(data, cut, max_string_bytes=found.longest - 1) == 422


def test_brackets_that_close_nothing_do_not_pay_for_nesting() -> None:
    assert refused(b"[" + b"]" * 1000 + b"[" * 60, 4096) == 0
    assert refused(b"[" + b"]" * 1000 + b"[" * 65, 4096) == 422
    assert refused(b"[" + b"]" * 1000 + b"[" * 65, 7) == 422


def inspected(data: bytes, cut: int = 1 << 16, **limits: float) -> Inspection:
    inspection = Inspection(Limits(**limits))
    for begin in range(0, len(data), cut):
        inspection.feed(data[begin : begin + cut])
    inspection.finish()
    return inspection


@pytest.mark.parametrize("cut", [1, 3, 100, 1 << 16])
@pytest.mark.parametrize(
    "data",
    [
        PLAIN,
        b"\xef\xbb\xbf \n" + PLAIN,
        gzip.compress(PLAIN),
        gzip.compress(PLAIN[:20]) + gzip.compress(PLAIN[20:]),
        gzip.compress(PLAIN) + b"\0" * 512,
        zstandard.compress(PLAIN),
        gzip.compress(PLAIN * 50)[:-20],
    ],
    ids=["plain", "mark", "gzip", "members", "padded", "zstd", "cut off"],
)
def test_what_the_reader_reads_is_accepted(data: bytes, cut: int) -> None:
    inspection = inspected(data, cut)
    assert inspection.bytes == len(data)
    assert inspection.text_bytes >= len(PLAIN)


@pytest.mark.parametrize(
    ("data", "limits", "status"),
    [
        (b"", {}, 400),
        (b" \n\t", {}, 415),
        (b"hello", {}, 415),
        (gzip.compress(b""), {}, 415),
        (gzip.compress(b"PK\x03\x04" + b"\0" * 600), {}, 415),
        (gzip.compress(gzip.compress(PLAIN)), {}, 415),
        ("[1]".encode("utf-16"), {}, 415),
        (b"\x1f\x8b" + b"\xff" * 600, {}, 415),
        (PLAIN * 10, {"max_body_bytes": 500}, 413),
        (gzip.compress(PLAIN * 10), {"max_text_bytes": 500}, 413),
        (gzip.compress(b"[" + b" " * (5 << 20) + b"]"), {}, 413),
        (zstandard.compress(b"[" + b" " * (5 << 20) + b"]"), {}, 413),
        (gzip.compress(PLAIN) + gzip.compress(b"") * 200, {"max_members": 200}, 413),
    ],
    ids=["empty", "blank", "words", "gzip of nothing", "zip in gzip", "gzip in gzip", "utf-16", "damaged gzip",
         "body", "text", "ratio", "zstd ratio", "members"],
)  # fmt: skip
def test_what_is_no_trace_or_too_much_is_refused(data: bytes, limits: dict[str, float], status: int) -> None:
    with pytest.raises(Problem) as caught:
        inspected(data, **limits)
    assert caught.value.status == status


def test_a_zstd_frame_may_not_ask_for_a_window_of_any_size() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=0)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    with pytest.raises(Problem) as caught:
        inspected(packer.compress(PLAIN * 100) + packer.flush())
    assert caught.value.status == 415


def test_a_bomb_is_known_long_before_it_is_unpacked() -> None:
    bomb = gzip.compress(b"[" + b" " * (200 << 20), compresslevel=1)
    inspection = Inspection(Limits())
    with pytest.raises(Problem):
        inspection.feed(bomb)
    assert inspection.text_bytes < 101 * len(bomb) + (1 << 20)

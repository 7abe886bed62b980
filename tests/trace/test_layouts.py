"""The same events are the same trace, however they are laid out, compressed, encoded and cut into blocks."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.trace.made import LAYOUTS, PACKINGS, document, events, packed
from tests.trace.plain import assert_same, events_of
from traceanalyzer.trace import read_trace
from traceanalyzer.trace.events import CATEGORIES
from traceanalyzer.trace.kineto import read_kineto
from traceanalyzer.trace.salvage import decode

TABLES = ("kernels", "launches", "ops", "annotations", "syncs", "counters")


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 40),
    layout=st.sampled_from(LAYOUTS),
    packing=st.sampled_from(PACKINGS),
    block=st.sampled_from([1, 2, 7, 64, 300, 1000, 5000, 1 << 21]),
    ascii_only=st.booleans(),
)
def test_any_layout_gives_the_same_rows(
    tmp_path: Path, seed: int, count: int, layout: str, packing: str, block: int, ascii_only: bool
) -> None:
    made = events(seed, count)
    assume(layout != "list" or any("cat" in event for event in made))  # else nothing says that it is a trace
    text = document(made, layout, ascii_only)
    path = tmp_path / "trace.json"
    path.write_bytes(packed(text, packing))
    trace = read_kineto(path, block)
    assert_same(trace, events_of(text))
    assert not [note for note in trace.quality if note.severity != "info"]
    assert "planted" not in repr(trace.metadata) + "".join(trace.strings)
    if layout != "list":
        assert trace.metadata.base_time_ns == 5
        assert trace.metadata.devices[0].num_sms == 4


@pytest.mark.parametrize("layout", LAYOUTS)
def test_block_size_never_matters(tmp_path: Path, layout: str) -> None:
    made = events(7, 60)
    path = tmp_path / "trace.json"
    path.write_bytes(document(made, layout))
    whole = read_kineto(path)
    for block in (*range(1, 40), 100, 999, 10_000):
        small = read_kineto(path, block)
        assert small.strings == whole.strings
        assert small.threads == whole.threads
        assert small.quality == whole.quality
        assert small.metadata == whole.metadata
        for table in TABLES:
            assert getattr(small, table).equals(getattr(whole, table)), (table, block)


def test_an_event_longer_than_many_blocks(tmp_path: Path) -> None:
    made = events(3, 5)
    made[2]["args"] = {"External id": 1, "Input Dims": [[i] for i in range(20_000)], "list": [{"a": 1}] * 5000}
    made[2] |= {"cat": "cpu_op", "ph": "X", "dur": 1}
    for layout in LAYOUTS:
        text = document(made, layout)
        path = tmp_path / "trace.json"
        path.write_bytes(text)
        trace = read_kineto(path, 256)
        assert_same(trace, events_of(text))
        assert not [note for note in trace.quality if note.severity != "info"]


def test_an_empty_list_of_events_is_an_empty_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for body in ("[]", "[\n\n  ]", "[ ,]"):
        path.write_text('{"schemaVersion": 1, "traceEvents": ' + body + ', "baseTimeNanoseconds": 3}')
        trace = read_trace(path)
        assert trace.source.events == 0
        assert all(getattr(trace, table).empty for table in TABLES)
        assert trace.metadata.base_time_ns == 3
        assert trace.quality == ()


def test_a_trailing_comma_is_no_damage(tmp_path: Path) -> None:
    made = events(5, 12)
    text = document(made, "old kineto")
    cut = text.rindex(b"}\n  ],")
    path = tmp_path / "trace.json"
    path.write_bytes(text[: cut + 1] + b",\n  ]," + text[cut + 6 :])
    trace = read_trace(path)
    assert_same(trace, made_exact(made))
    assert not [note for note in trace.quality if note.severity != "info"]


def made_exact(made: list[dict[str, object]]) -> list[dict[str, object]]:
    return events_of(document(made, "minified"))


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    made = events(11, 30)
    text = document(made, "one line")
    data = io.BytesIO(packed(text, "gzip members"))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=data))
    trace = read_trace("-")
    assert_same(trace, events_of(text))
    assert trace.source.name == "stdin"
    assert trace.source.format == "kineto-json.gz"
    assert trace.source.bytes == len(data.getvalue())
    assert not data.closed


def test_columns_have_the_types_of_the_contract(tmp_path: Path) -> None:
    from traceanalyzer.trace import tables

    path = tmp_path / "trace.json"
    schemas = {
        "kernels": tables.KERNEL_COLUMNS, "launches": tables.LAUNCH_COLUMNS, "ops": tables.OP_COLUMNS,
        "annotations": tables.ANNOTATION_COLUMNS, "syncs": tables.SYNC_COLUMNS, "counters": tables.COUNTER_COLUMNS,
    }  # fmt: skip
    for text in (document(events(1, 200), "minified"), json.dumps({"schemaVersion": 1, "traceEvents": []}).encode()):
        path.write_bytes(text)
        trace = read_trace(path)
        for name, schema in schemas.items():
            frame = getattr(trace, name)
            assert list(frame.columns) == list(schema)
            assert [frame[column].dtype for column in frame] == list(schema.values())
            assert frame.index.equals(frame.reset_index(drop=True).index)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_events_without_anything_odd_are_decoded_once(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = [event for event in events(11, 1200) if event.get("cat") in CATEGORIES]
    assert len({event["cat"] for event in known}) > 8
    path = tmp_path / "trace.json"
    path.write_bytes(document(known, layout))
    monkeypatch.setattr("traceanalyzer.trace.source._PLAIN_CHUNK", 1000)
    careful: list[bytes] = []
    monkeypatch.setattr("traceanalyzer.trace.blocks.decode", lambda piece: careful.append(piece) or decode(piece))
    trace = read_kineto(path, 4000)
    at_the_end = len(careful)
    monkeypatch.setattr("traceanalyzer.trace.blocks._MOST_VAIN", 0)
    again = read_kineto(path, 4000)
    assert 3 * at_the_end < len(careful), "only where the list ends is anything looked at again"
    for table in TABLES:
        assert getattr(trace, table).equals(getattr(again, table)), table
    assert trace.strings == again.strings
    assert trace.threads == again.threads
    assert trace.quality == again.quality

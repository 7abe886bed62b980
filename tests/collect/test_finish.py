"""Finishing a raw trace: whole or not there, in bounded memory, with nothing in it that tells where it came from."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.collect import raws
from traceanalyzer.collect import scan as scanning
from traceanalyzer.collect.finish import Finished, finish
from traceanalyzer.collect.scan import Damaged, Scan, scan
from traceanalyzer.trace import read_trace

BLOCK = {"schema": 1, "window": {"number": 3}}

SCRIPT = """
import sys, torch
from torch.profiler import profile, record_function, ProfilerActivity
model = torch.nn.Linear(8, 8)
with profile(activities=[ProfilerActivity.CPU], with_stack=True, record_shapes=True) as session:
    for number in range(4):
        with record_function(f"ta.step[{'decode' if number else 'prefill'} n={number} tokens=2 seqs=2 ctx=8 qk=8]"):
            model(torch.randn(2, 8))
    cut = record_function("ta.step[decode n=4 tokens=2 seqs=2 ctx=8 qk=8]")
    cut.__enter__()
    model(torch.randn(2, 8))
cut.__exit__(None, None, None)
session.export_chrome_trace(sys.argv[1])
"""


def finished(text: bytes, target: Path, block: dict[str, Any] = BLOCK) -> tuple[Scan, Finished]:
    stream = io.BytesIO(text)
    found = scan(stream)
    return found, finish(stream, found, target, block)


def content(path: Path) -> dict[str, Any]:
    with gzip.open(path, "rb") as stream:
        found: dict[str, Any] = json.load(stream)
    return found


def dumped(trace: dict[str, Any], **style: Any) -> bytes:
    return json.dumps(trace, **style).encode()


@pytest.fixture(scope="module")
def kineto(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Kineto itself writes, from a script in a folder whose name must not get out."""
    folder = tmp_path_factory.mktemp("someones_folder")
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(folder / "script.py"), str(folder / "7-1.json")]
    subprocess.run(command, check=True, timeout=120, capture_output=True, cwd=folder)
    return folder / "7-1.json"


def test_what_kineto_writes_is_counted_and_kept(kineto: Path, tmp_path: Path) -> None:
    found, done = finished(kineto.read_bytes(), tmp_path / "out.json.gz")
    before, after = json.loads(kineto.read_text()), content(tmp_path / "out.json.gz")
    assert (found.phases, found.unfinished, found.first_number) == ({"prefill": 1, "decode": 3}, 1, 0)
    assert found.events == sum(event["ph"] != "M" for event in before["traceEvents"])
    labels = [e for e in before["traceEvents"] if e.get("cat") == "user_annotation" and "n=4" not in e["name"]]
    base = before["baseTimeNanoseconds"]
    assert found.first_step_ns == base + round(min(e["ts"] for e in labels) * 1000)
    assert found.last_step_ns == base + round(max(e["ts"] + e["dur"] for e in labels) * 1000)
    assert found.opened_ns is not None and found.closed_ns is not None
    assert found.opened_ns <= found.first_step_ns < found.last_step_ns <= found.closed_ns
    assert next(iter(after)) == "traceanalyzer" and after["traceanalyzer"] == BLOCK
    assert len(after["traceEvents"]) == len(before["traceEvents"])
    kept = {key: value for key, value in before.items() if key not in ("traceEvents", "traceName", "host_name")}
    assert {key: after[key] for key in kept} == kept
    data = (tmp_path / "out.json.gz").read_bytes()
    assert done == (len(data), hashlib.sha256(data).hexdigest())
    assert [path.name for path in tmp_path.iterdir()] == ["out.json.gz"]


def test_no_path_and_no_host_gets_out(kineto: Path, tmp_path: Path) -> None:
    assert b"someones_folder" in kineto.read_bytes()  # Python's own events name the script
    finished(kineto.read_bytes(), tmp_path / "out.json.gz")
    text = gzip.decompress((tmp_path / "out.json.gz").read_bytes()).decode()
    assert "someones_folder" not in text
    assert '"/' not in text
    assert "script.py" in text  # which line it was stays known
    host = json.loads(kineto.read_text())["host_name"]
    assert content(tmp_path / "out.json.gz")["host_name"] == hashlib.sha256(host.encode()).hexdigest()[:12]


def test_the_analyzer_reads_it(kineto: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.pt.trace.json.gz"
    finished(kineto.read_bytes(), path, {**BLOCK, "window": {"number": 3, "rank": 1, "world_size": 2}})
    trace = read_trace(path)
    assert trace.metadata.collector is not None
    assert trace.metadata.collector["window"] == {"number": 3, "rank": 1, "world_size": 2}
    assert (trace.metadata.rank, trace.metadata.world_size) == (1, 2)
    assert not [note for note in trace.quality if "damaged" in note.code or "truncated" in note.code]


def test_unknown_keys_are_dropped_and_messages_lose_their_paths(tmp_path: Path) -> None:
    trace = raws.facts(
        raws.ops(1), traceanalyzer={"schema": 1, "window": {"number": 99}}, environment={"HF_TOKEN": "hf_secret"},
        argv="python gen.py --prompt hello", PWD="/home/someone", WARNING=["could not open /home/someone/x.txt: 3", 7],
        distributedInfo={"rank": 2, "world_size": 4, "backend": "nccl", "store": "tcp://node-17:29500"},
        cuda_runtime_version=12080, torch_version="2.13.0+cu130", vllm_version="/home/someone/vllm",
        deviceProperties=[{"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150_000_000_000, "numSms": 132}],
    )  # fmt: skip
    finished(dumped(trace), tmp_path / "out.json.gz")
    after = content(tmp_path / "out.json.gz")
    assert set(after) == {
        "traceanalyzer", "schemaVersion", "deviceProperties", "trace_id", "host_name", "displayTimeUnit",
        "baseTimeNanoseconds", "WARNING", "distributedInfo", "cuda_runtime_version", "torch_version", "traceEvents",
    }  # fmt: skip
    assert after["traceanalyzer"] == BLOCK
    assert after["WARNING"] == ["could not open [path]: 3"]
    assert after["distributedInfo"] == {"rank": 2, "world_size": 4, "backend": "nccl"}
    assert after["deviceProperties"] == trace["deviceProperties"]
    text = json.dumps(after)
    assert not any(word in text for word in ("someone", "secret", "prompt", "node-17", "29500"))


@pytest.mark.parametrize("style", [{}, {"indent": 1}, {"separators": (",", ":")}, {"separators": (" , ", " : ")}])
@pytest.mark.parametrize("last", [True, False])
def test_any_layout_and_order_of_keys(style: dict[str, Any], last: bool, tmp_path: Path) -> None:
    trace = raws.usual(steps=5, events=3000)  # more than one chunk
    trace["traceEvents"].append(
        {"ph": "X", "args": {"list": [[1, [2, {"a": "},"}]], {}], "text": '"},{"'}, "name": "x"}
    )
    if not last:
        trace = {"traceEvents": trace.pop("traceEvents"), **trace}
    found, _ = finished(dumped(trace, **style), tmp_path / "out.json.gz")
    assert found.events == 3000 + 5 + 2
    assert found.phases == {"prefill": 1, "decode": 4}
    assert found.opened_ns == raws.BASE_NS - 10_000
    assert found.closed_ns == raws.BASE_NS + 510_000
    assert content(tmp_path / "out.json.gz")["traceEvents"] == trace["traceEvents"]


def test_only_labels_on_the_host_count(tmp_path: Path) -> None:
    events = [
        raws.step("decode", 8, 10.0), raws.step("decode", 7, 5.0),
        raws.step("decode", 7, 5.0, cat="gpu_user_annotation"),
        raws.step("decode", 9, 15.0, args={"finished": False}), raws.step("decode", 9, 15.0, dur=None),
        raws.step("telepathy", 10, 20.0), raws.step("decode", 3, 1.0, cat="cpu_op"),
    ]  # fmt: skip
    found, _ = finished(dumped(raws.facts(events)), tmp_path / "out.json.gz")
    assert found.phases == {"decode": 2, "other": 1}
    assert (found.steps, found.unfinished, found.first_number) == (3, 1, 7)
    assert found.first_step_ns == raws.BASE_NS + 5_000
    assert found.last_step_ns == raws.BASE_NS + 70_000


def test_a_step_that_ended_when_no_operation_was_taken_any_more_is_cut() -> None:
    """By its end, of whatever phase; the bound itself is in time. Labels last 50 us each."""
    events = [
        raws.step("prefill", 0, 0.0), raws.step("decode", 1, 100.0), raws.step("decode", 2, 150.001),
        raws.step("mixed", 3, 900.0), raws.step("decode", 4, 950.0, args={"finished": False}),
    ]  # fmt: skip
    whole = scan(io.BytesIO(dumped(raws.facts(events))))
    assert (whole.phases, whole.unfinished) == ({"prefill": 1, "decode": 2, "mixed": 1}, 1)
    found = scan(io.BytesIO(dumped(raws.facts(events))), raws.BASE_NS + 150_000)
    assert (found.phases, found.unfinished) == ({"prefill": 1, "decode": 1}, 3)
    assert (found.first_step_ns, found.last_step_ns) == (raws.BASE_NS, raws.BASE_NS + 150_000)
    none = scan(io.BytesIO(dumped(raws.facts(events))), raws.BASE_NS)
    assert (none.steps, none.unfinished, none.first_step_ns, none.first_number) == (0, 5, None, 0)


def test_strings_with_control_characters_or_broken_bytes_pass(tmp_path: Path) -> None:
    text = dumped(raws.usual()).replace(b"aten::mm", b"kernel\x01\x1f\xff\xfe<T>")
    found, _ = finished(text, tmp_path / "out.json.gz")
    assert found.events == 104
    assert b"kernel\x01\x1f\xff\xfe<T>" in gzip.decompress((tmp_path / "out.json.gz").read_bytes())


@pytest.mark.parametrize(
    "change",
    [
        lambda text: b"",
        lambda text: b"   ",
        lambda text: b"[]",
        lambda text: b'{"traceEvents": []}',
        lambda text: b'{"schemaVersion": 1}',
        lambda text: b'{"traceEvents": {}}',
        lambda text: b'{"traceEvents": [1, 2]}',
        lambda text: b'{"traceEvents": [{"ph": "M", "name": "process_name"}]}',
        lambda text: text + text,
        lambda text: text[:-1],
        lambda text: text.replace(b"}, {", b"} {", 1),
        lambda text: text.replace(b"}, {", b"},, {", 1),
        lambda text: text[:3000] + b"\0" * 4096 + text[7096:],
        lambda text: text.replace(b"aten::mm", b"at\0n::mm", 1),
        lambda text: text.replace(b'"traceEvents": [', b'"traceEvents": [{}], "traceEvents": [', 1),
        lambda text: text.replace(b'"traceEvents": [', b'"traceEvents": [' + b"[" * 100_000, 1),
        lambda text: text.replace(b"aten::mm", b"x" * (scanning.LONGEST + 1), 1),
        lambda text: b'{"a": ' + b"9" * 5000 + text[1:],
    ],
)
def test_what_is_not_whole_is_not_published(change: Callable[[bytes], bytes], tmp_path: Path) -> None:
    text = dumped(raws.usual())
    with pytest.raises(Damaged):
        finished(change(text), tmp_path / "out.json.gz")
    assert not list(tmp_path.iterdir())


def test_a_trace_that_shrinks_meanwhile_is_not_published(tmp_path: Path) -> None:
    raw = raws.write(tmp_path / "raw.json", raws.usual(events=5000))
    with raw.open("rb") as stream:
        found = scan(stream)
        with raw.open("r+b") as writer:
            writer.truncate(found.end - 100)
        with pytest.raises(Damaged):
            finish(stream, found, tmp_path / "out.json.gz", BLOCK)
    assert [path.name for path in tmp_path.iterdir()] == ["raw.json"]


def test_numbers_that_json_does_not_have_do_no_harm(tmp_path: Path) -> None:
    trace = raws.facts(
        raws.ops(1), baseTimeNanoseconds=float("nan"), cuda_runtime_version=float("inf"),
        deviceProperties=[{"id": float("nan"), "name": "x\ud800y"}],
    )  # fmt: skip
    finished(dumped(trace), tmp_path / "out.json.gz")
    after = content(tmp_path / "out.json.gz")
    assert "baseTimeNanoseconds" not in after and "cuda_runtime_version" not in after
    assert after["deviceProperties"] == [{"id": None, "name": "x?y"}]


WHOLE = dumped(raws.usual(steps=2, events=20), indent=1)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(WHOLE) - 1))
def test_cut_anywhere_it_is_damaged(at: int) -> None:
    with pytest.raises(Damaged):
        scan(io.BytesIO(WHOLE[:at]))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=8))
def test_it_agrees_with_a_parser_of_the_whole(at: int, noise: bytes) -> None:
    """Overwritten anywhere: what is taken for whole parses as a whole, and the other way round."""
    text = WHOLE[:at] + noise + WHOLE[at + len(noise) :]
    try:
        trace = json.loads(text.decode("utf-8", "surrogateescape"), strict=False)
        events = trace["traceEvents"]
        pairs = json.loads(text.decode("utf-8", "surrogateescape"), strict=False, object_pairs_hook=list)
        once = [key for key, _ in pairs].count("traceEvents") == 1
        whole = b"\0" not in text and once and all(isinstance(event, dict) for event in events)
    except (ValueError, KeyError, TypeError):
        whole = False
    try:
        found = scan(io.BytesIO(text))
    except Damaged:
        assert not whole
    else:
        assert whole
        assert found.events == sum(event.get("ph") != "M" for event in events)
        assert json.loads((b"[" + text[found.begin : found.end] + b"]").decode("utf-8", "replace"), strict=False)


PATHS = st.lists(st.sampled_from(["home", "someone", "a.py", "x 1", "é", 'q"t', "b\\s"]), min_size=2, max_size=4).map(
    lambda parts: "/" + "/".join(parts)
)


@settings(max_examples=60, deadline=None)
@given(st.lists(PATHS), st.lists(st.text(max_size=12), min_size=1), st.integers(1, 64), st.booleans())
def test_paths_go_and_all_else_stays_however_the_text_is_cut(
    paths: list[str], others: list[str], chunk: int, ascii_only: bool
) -> None:
    """The same text in pieces of any size; names that are no absolute paths come out as they went in."""
    names = [*paths, *others]
    trace = raws.facts([{"ph": "X", "name": name, "args": {"k": [name]}} for name in names])
    text = json.dumps(trace, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    with tempfile.TemporaryDirectory() as folder, mock.patch("traceanalyzer.collect.finish.CHUNK", chunk):
        finished(text, Path(folder) / "out.gz")
        after = content(Path(folder) / "out.gz")["traceEvents"]
    for name, event in zip(names, after, strict=True):
        if not name.startswith("/"):
            assert event["name"] == name
            assert event["args"] == {"k": [name]}
        elif name in paths:
            assert event["name"] == name.rpartition("/")[2]


def test_memory_does_not_grow_with_the_trace(tmp_path: Path) -> None:
    """Peak memory of a process that finishes 40 MB, against one that finishes next to nothing."""
    small = raws.write(tmp_path / "small.json", raws.usual())
    piece = json.dumps(raws.ops(2000), indent=2).encode()[1:-1]
    large = tmp_path / "large.json"
    with large.open("wb") as stream:
        stream.write(b'{"traceEvents": [' + b",".join([piece] * 100) + b"]}")
    assert large.stat().st_size > 30_000_000
    code = (
        "import sys, resource; from pathlib import Path\n"
        "from traceanalyzer.collect.scan import scan; from traceanalyzer.collect.finish import finish\n"
        "stream = open(sys.argv[1], 'rb')\n"
        "finish(stream, scan(stream), Path(sys.argv[2]), {'schema': 1})\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    peaks = []
    for place, raw in enumerate((small, large)):
        command = [sys.executable, "-c", code, str(raw), str(tmp_path / f"out{place}.gz")]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        peaks.append(int(done.stdout))
    assert peaks[1] - peaks[0] < 30_000  # KiB


def test_a_file_that_reads_back_differently_is_not_published(tmp_path: Path) -> None:
    target = tmp_path / "a.json.gz"

    def spoil(fd: int) -> None:
        os.pwrite(fd, b"x", 40)

    with mock.patch("traceanalyzer.collect.finish.os.fsync", spoil), pytest.raises(OSError, match="reads back"):
        finished(b'{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1, "pid": 1, "tid": 1}]}', target)
    assert list(tmp_path.iterdir()) == []

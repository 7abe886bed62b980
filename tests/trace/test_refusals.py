"""What is no trace gets one clear line, from its bytes and not from its name; nothing is unpickled or unpacked."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import sqlite3
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.trace.made import document, events
from traceanalyzer.errors import CorruptTraceError, InputError, TraceAnalyzerError, UnsupportedTraceError
from traceanalyzer.trace import read_trace, read_traces


class _Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("unpickled",)


def _tar() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("trace.json"))
    return stream.getvalue()


def _zip() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("trace.json", "{}")
    return stream.getvalue()


def _chrome(category: str | None) -> bytes:
    event = {"ph": "X", "name": "x", "ts": 1, "dur": 1} | ({"cat": category} if category else {})
    return json.dumps({"traceEvents": [event]}).encode()


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        (b"", InputError, "is empty"),
        (_zip(), InputError, "zip archive"),
        (_tar(), InputError, "tar archive"),
        (gzip.compress(_tar()), InputError, "tar archive"),
        (b"7z\xbc\xaf\x27\x1c\x00\x04", InputError, "7z archive"),
        (bz2.compress(b"{}"), InputError, "bzip2"),
        (lzma.compress(b"{}"), InputError, "xz"),
        (b"SQLite format 3\x00" + bytes(100), UnsupportedTraceError, "Nsight input is not supported yet"),
        (pickle.dumps(_Bomb()), UnsupportedTraceError, "pickle"),
        (gzip.compress(pickle.dumps({"segments": []})), UnsupportedTraceError, "memory snapshot"),
        (b"Time (%),Total Time (ns),Instances,Name\n1,2,3,k\n", UnsupportedTraceError, "nsys stats"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", InputError, "git lfs pull"),
        (b'{"rocprofiler-sdk-tool": [{"metadata": {}}]}', UnsupportedTraceError, "rocprof"),
        (b'{"schema": "1.1.1", "nodes": []}', UnsupportedTraceError, "execution trace"),
        (b'{"report_id": "x", "ledger": []}', InputError, "not a trace"),
        (b'{"answer": 42}', UnsupportedTraceError, "without traceEvents"),
        (b'{"schemaVersion": 1, "deviceProp', CorruptTraceError, "ends before its first event"),
        (b"hello", UnsupportedTraceError, "is not JSON"),
        (b"\x00\x01\x02\x03" * 300, UnsupportedTraceError, "is not JSON"),
        (_chrome("blink"), UnsupportedTraceError, "1 blink"),
        (_chrome(None), UnsupportedTraceError, "that PyTorch did not write"),
        (b"[1, 2, 3]", UnsupportedTraceError, "that PyTorch did not write"),
        (_chrome("mtia_ccp_events"), UnsupportedTraceError, "MTIA"),
        (_chrome("hpu_op"), UnsupportedTraceError, "Gaudi"),
        (_chrome("bad\ncategory\x1b[31m"), UnsupportedTraceError, "bad?category?[31m"),
    ],
    # Archives hold the time they were made; a test's name must not.
    ids=lambda value: value.replace("\n", " ") if isinstance(value, str) else type(value).__name__,
)
def test_one_line_says_what_the_file_is(
    tmp_path: Path, data: bytes, kind: type[TraceAnalyzerError], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.json"
    path.write_bytes(data)
    with pytest.raises(kind, match=r"^run\.json ") as error:
        read_trace(path)
    assert words in str(error.value)
    assert error.value.hint
    assert str(error.value).isprintable()
    assert not (tmp_path / "unpickled").exists()


def test_a_database_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("create table t (x)")
    connection.commit()
    connection.close()
    with pytest.raises(UnsupportedTraceError, match="SQLite"):
        read_trace(path)


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^gone\.json does not exist"):
        read_trace(tmp_path / "gone.json")
    with pytest.raises(InputError, match="is a folder"):
        read_trace(tmp_path)
    with pytest.raises(InputError, match="cannot be opened"):
        read_trace("a\0b")
    odd = tmp_path / "line\nbreak.json"
    odd.write_bytes(b"")
    with pytest.raises(InputError) as error:
        read_trace(odd)
    assert error.value.message == "line?break.json is empty"


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(b"{}")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match=r"^run\.json cannot be read: permission denied"):
        read_trace(path)


def test_a_folder_stands_for_the_traces_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with pytest.raises(InputError, match="the folder run holds no traces"):
        read_traces([folder])
    text = document(events(1, 5), "old kineto")
    (folder / "b.pt.trace.json").write_bytes(text)
    (folder / "a.trace.json.gz").write_bytes(gzip.compress(document(events(2, 7), "list")))
    (folder / "config.json").write_text('{"model": 1}')
    (folder / "empty.json").write_bytes(b"")
    (folder / "archive.json.zip").write_bytes(_zip())
    (folder / "notes.txt").write_text("traceEvents")
    (folder / "inner.json").mkdir()
    found = read_traces([folder])
    assert [(trace.source.name, trace.source.events) for trace in found] == [
        ("a.trace.json.gz", 7),
        ("b.pt.trace.json", 5),
    ]
    twice = read_traces([folder / "b.pt.trace.json", str(folder)])
    assert [trace.source.events for trace in twice] == [5, 7, 5]
    with pytest.raises(InputError, match="no trace given"):
        read_traces([])
    with pytest.raises(InputError, match="does not exist"):
        read_traces([tmp_path / "gone"])


def test_an_empty_file_beside_others_is_left_out_and_noted(tmp_path: Path) -> None:
    """A rank that died before it wrote; alone, or with others of its kind, it is refused."""
    good, empty, other = (tmp_path / name for name in ("rank0.json", "rank1.json", "rank2.json"))
    good.write_bytes(document(events(1, 5), "old kineto"))
    for path in (empty, other):
        path.touch()
    (trace,) = read_traces([empty, good, other])
    assert trace.source.name == "rank0.json"
    note = trace.quality[0]
    assert (note.code, note.count, note.detail) == ("empty_files_left_out", 2, "rank1.json")
    with pytest.raises(InputError, match=r"rank1\.json is empty"):
        read_traces([empty, other])

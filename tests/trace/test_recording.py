"""Folders that a recorder leaves: what is read of them, what is missing, and what a hostile manifest cannot do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trace import windowed
from traceanalyzer.__main__ import main
from traceanalyzer.errors import InputError
from traceanalyzer.trace import Trace, read_trace, read_traces
from traceanalyzer.trace.recording import find, read_recording


def window(start_us: int = 0) -> dict[str, Any]:
    """A window of one labelled step with one launch and one kernel."""
    event = {"ph": "X", "pid": 4001, "tid": 4001}
    label = "ta.step[decode n=1 tokens=1 seqs=1 ctx=9 qk=9]"
    return {
        "schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "baseTimeNanoseconds": windowed.STARTED_NS,
        "traceEvents": [
            {**event, "cat": "user_annotation", "name": label, "ts": start_us, "dur": 50, "args": {"External id": 3}},
            {**event, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start_us + 1, "dur": 2,
             "args": {"correlation": 7, "External id": 3}},
            {**event, "cat": "kernel", "name": "k", "ts": start_us + 5, "dur": 20.5, "pid": 0, "tid": 7,
             "args": {"device": 0, "stream": 7, "correlation": 7, "External id": 3}},
        ],
    }  # fmt: skip


def windows(count: int) -> list[dict[str, Any]]:
    return [window(1_000_000 * number) for number in range(count)]


def codes(traces: list[Trace]) -> dict[str, tuple[int, str]]:
    return {note.code: (note.count, note.detail) for trace in traces for note in trace.quality}


def edited(folder: Path, **facts: Any) -> Path:
    path = folder / "recording.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **facts}), encoding="utf-8")
    return folder


def test_a_recording_is_read_window_by_window(tmp_path: Path) -> None:
    found = read_traces([windowed.recording(tmp_path / "r", windows(3))])
    assert [trace.metadata.collector["window"]["number"] for trace in found if trace.metadata.collector] == [1, 2, 3]
    assert not codes(found)
    assert found[0].recording is not None
    assert (found[0].recording.windows, found[0].recording.windows_read, found[0].recording.mode) == (3, 3, "full")


def test_a_folder_of_one_recording_stands_for_it(tmp_path: Path) -> None:
    windowed.recording(tmp_path / "spool" / "r", windows(2))
    (tmp_path / "spool" / "notes").mkdir()
    assert len(read_traces([tmp_path / "spool"])) == 2


def test_several_recordings_are_named_the_newest_first(tmp_path: Path) -> None:
    for name, created in (("a", "2026-11-28"), ("c", "2026-11-30"), ("b", "2026-11-29")):
        windowed.recording(tmp_path / "spool" / name, windows(1), created_at=created)
    with pytest.raises(InputError, match="3 recordings, the newest first: c, b, a") as caught:
        read_traces([tmp_path / "spool"])
    assert str(caught.value.hint).endswith(f"traceanalyzer report {tmp_path / 'spool' / 'c'}")


def test_a_plain_folder_of_traces_works_as_before(tmp_path: Path) -> None:
    windowed.recording(tmp_path / "r", windows(2))
    (tmp_path / "r" / "recording.json").unlink()
    assert [trace.recording for trace in read_traces([tmp_path / "r"])] == [None, None]
    (tmp_path / "r" / "inner").mkdir()
    shutil.copy(windowed.recording(tmp_path / "other", windows(1)) / "recording.json", tmp_path / "r" / "inner")
    assert len(read_traces([tmp_path / "r"])) == 2


@pytest.mark.parametrize("mode", ["full", "sample"])
def test_only_so_many_windows_are_read_as_memory_should_hold(tmp_path: Path, mode: str) -> None:
    manifest = find(windowed.recording(tmp_path / "r", windows(5), mode=mode), lambda _: [])
    assert manifest is not None
    found = read_recording(manifest, read_trace, most_events=5)  # three events each
    numbers = sorted(trace.metadata.collector["window"]["number"] for trace in found if trace.metadata.collector)
    assert numbers == ([1, 2] if mode == "full" else [4, 5])
    assert codes(found) == {"windows_left_out": (3, "2 of 5")}
    assert found[0].recording is not None
    assert (found[0].recording.windows_read, found[0].recording.windows) == (2, 5)


def test_the_first_window_is_read_however_large(tmp_path: Path) -> None:
    manifest = find(windowed.recording(tmp_path / "r", windows(2)), lambda _: [])
    assert manifest is not None
    assert len(read_recording(manifest, read_trace, most_events=1)) == 1


def test_what_is_missing_or_changed_is_noted(tmp_path: Path) -> None:
    folder = windowed.recording(tmp_path / "r", windows(3), finished_at=None, dropped={"quota": 2, "busy": 1},
                                failures=[{"where": "hooks"}])  # fmt: skip
    first, second, _ = sorted(folder.glob("*.gz"))
    first.unlink()
    shutil.copy(sorted(folder.glob("*.gz"))[-1], second)
    found = read_traces([folder])
    assert codes(found) == {
        "recording_files_missing": (1, ""), "recording_files_changed": (1, ""), "recording_unfinished": (1, ""),
        "recording_dropped": (3, "busy 1, quota 2"), "recording_failures": (1, ""),
    }  # fmt: skip


def test_what_the_recorder_lost_is_noted(tmp_path: Path) -> None:
    processes = [
        {"pid": 1, "failures_total": 7, "failures": [{"where": "describe", "count": 1}]},
        {"pid": 2, "failures_total": 3}, {"pid": 3, "failures_total": 0}, {"pid": 4, "failures_total": "x"},
    ]  # fmt: skip
    lost = {"steps_overwritten": 26, "steps_beyond_log": 5, "windows_unwritten": 2, "step_logs": 1, "\x1b": 9, "x": -1}
    folder = windowed.recording(
        tmp_path / "r",
        windows(1),
        processes=processes,
        lost=lost,
        dropped={"quota": 3},
        failures=[{"where": "describe"}],
    )
    found = read_traces([folder])
    assert codes(found) == {
        "recording_dropped": (6, "quota 3, step logs 1, windows unwritten 2"), "recording_failures": (2, ""),
        "recording_steps_lost": (26, ""), "recording_steplog_short": (5, ""),
    }  # fmt: skip
    assert found[0].recording is not None
    assert found[0].recording.dropped == {"quota": 3, "step_logs": 1, "windows_unwritten": 2}


@pytest.mark.parametrize("mode", ["full", "sample"])
def test_a_window_that_cannot_be_read_is_counted(tmp_path: Path, mode: str) -> None:
    folder = windowed.recording(tmp_path / "r", windows(3), mode=mode)
    paths = sorted(folder.glob("*.gz"))
    paths[1].write_bytes(b"")
    found = read_traces([folder])
    assert [trace.source.name for trace in found] == [path.name for path in (paths if mode == "full" else paths[::-1])
                                                      if path != paths[1]]  # fmt: skip
    assert codes(found) == {"recording_files_unreadable": (1, "")}
    assert found[0].recording is not None
    assert (found[0].recording.windows_read, found[0].recording.windows) == (2, 3)
    for path in paths:
        path.write_bytes(b"")
    with pytest.raises(InputError, match=r"is empty"):
        read_traces([folder])


def test_a_rank_whose_file_cannot_be_read_is_missing(tmp_path: Path) -> None:
    folder = two_ranks(tmp_path / "r", "sample")
    (broken,) = folder.glob("*-12-rank1-*03.123Z*")
    broken.write_bytes(b"PK no trace")
    found = codes(read_traces([folder]))
    assert found["windows_without_ranks"] == (2, "1")
    assert found["recording_files_unreadable"] == (1, "")


def two_ranks(folder: Path, mode: str) -> Path:
    """Three windows of rank 0, two of rank 1, and one of a process without a rank."""
    folder.mkdir()
    files = []
    for rank, pid, numbers in ((0, 11, (1, 2, 3)), (1, 12, (1, 3)), (None, 13, (1,))):
        for number in numbers:
            path = windowed.write(folder, window(10**6 * number), windowed.block(number, rank), rank or 0, pid)
            files.append((path, number, rank, pid))
    windowed.manifest(folder, files, mode=mode, processes=[{"pid": 11, "world_size": 2}, {"pid": 12, "world_size": 2}])
    return folder


@pytest.mark.parametrize(("mode", "note"), [("full", None), ("sample", (1, "1"))])
def test_ranks_are_read_beside_each_other(tmp_path: Path, mode: str, note: tuple[int, str] | None) -> None:
    found = read_traces([two_ranks(tmp_path / "r", mode)])
    assert sorted(trace.metadata.rank or 0 for trace in found) == [0, 0, 0, 1, 1]
    assert codes(found).get("windows_without_ranks") == note
    assert codes(found)["other_processes_left_out"] == (1, "")


@pytest.mark.parametrize("mode", ["full", "sample"])
def test_a_rank_without_any_window_is_missing(tmp_path: Path, mode: str) -> None:
    processes = [{"pid": 1}, {"pid": 4001, "rank": 0, "world_size": 2}, {"pid": 4002, "rank": 1, "world_size": 2}]
    folder = windowed.recording(tmp_path / "r", windows(2), rank=0, processes=processes, mode=mode)
    found = read_traces([folder])
    assert found[0].recording is not None and found[0].recording.ranks_missing == (1,)


@pytest.mark.parametrize("mode", ["full", "sample"])
def test_the_ranks_of_other_hosts_are_not_missing(tmp_path: Path, mode: str) -> None:
    """The second of two hosts with two ranks each: the other one has its own recording."""
    folder = tmp_path / "r"
    folder.mkdir()
    files = [(windowed.write(folder, window(10**6 * n), windowed.block(n, rank), rank, 10 + rank), n, rank, 10 + rank)
             for rank in (2, 3) for n in (1, 2)]  # fmt: skip
    processes = [{"pid": 10 + rank, "rank": rank, "world_size": 4} for rank in (2, 3)]
    windowed.manifest(folder, files, mode=mode, processes=processes)
    found = read_traces([folder])
    assert found[0].recording is not None and found[0].recording.ranks_missing == ()
    assert "windows_without_ranks" not in codes(found)


def test_a_rank_that_a_window_says_it_lacks_is_missing(tmp_path: Path) -> None:
    folder = windowed.recording(tmp_path / "r", windows(1), rank=0, mode="sample")
    facts = json.loads((folder / "recording.json").read_text(encoding="utf-8"))
    facts["windows"][0]["ranks_missing"] = [3, None, "x", -1]
    found = read_traces([edited(folder, **facts)])
    assert found[0].recording is not None and found[0].recording.ranks_missing == (3,)


def test_of_one_rank_the_process_with_most_steps_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    files = [(windowed.write(folder, window(), windowed.block(n), 0, pid), n, None, pid)
             for pid, n in ((21, 1), (22, 1), (22, 2))]  # fmt: skip
    windowed.manifest(folder, files)
    assert [trace.source.name.split("-")[2] for trace in read_traces([folder])] == ["22", "22"]
    assert codes(read_traces([folder]))["other_processes_left_out"] == (1, "")


SECRET = "outside.json"


@pytest.mark.parametrize(
    "name", ["../outside.json", "/etc/passwd", "sub/outside.json", ".hidden.json", "..", "", "a\0.json", 7, None,
             "x.txt", "a" * 300 + ".json", "-rf.json\n"]
)  # fmt: skip
def test_a_manifest_opens_no_file_but_those_beside_it(tmp_path: Path, name: Any) -> None:
    (tmp_path / SECRET).write_text(json.dumps(window()), encoding="utf-8")
    folder = windowed.recording(tmp_path / "r", windows(1))
    facts = json.loads((folder / "recording.json").read_text(encoding="utf-8"))
    facts["windows"][0]["files"].append({**facts["windows"][0]["files"][0], "name": name})
    found = read_traces([edited(folder, **facts)])
    assert len(found) == 1
    assert codes(found)["recording_files_missing"] == (1, "")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / SECRET).write_text(json.dumps(window()), encoding="utf-8")
    folder = windowed.recording(tmp_path / "r", windows(2))
    first = sorted(folder.glob("*.gz"))[0]
    first.unlink()
    first.symlink_to(tmp_path / SECRET)
    found = read_traces([folder])
    assert len(found) == 1
    assert codes(found)["recording_files_missing"] == (1, "")


ODD = {
    "windows": [None, 7, {"files": "x"}, {"files": [None, 3, []]}, {"number": -1, "files": [{"name": "gone.json"}]}],
    "processes": [{"rank": "many"}, {"rank": -3}, {"rank": 2**40}, {"rank": True}, {"rank": [1]}, 5], "mode": {"a": 1},
    "dropped": [1], "lost": [[]], "failures": 3, "recorder": "\x1b[31m", "created_at": ["x"], "finished_at": {},
    "extra": {"env": {"TOKEN": "x"}},
}  # fmt: skip


@pytest.mark.parametrize("key", [key for key in ODD if key != "windows"])
def test_odd_values_are_unknown(tmp_path: Path, key: str) -> None:
    found = read_traces([edited(windowed.recording(tmp_path / "r", windows(1)), **{key: ODD[key]})])
    assert len(found) == 1
    assert found[0].recording is not None


def test_a_recording_without_a_window_says_so(tmp_path: Path) -> None:
    folder = windowed.recording(tmp_path / "r", windows(1))
    with pytest.raises(InputError, match="names 1 traces, none of which"):
        read_traces([edited(folder, windows=ODD["windows"])])
    with pytest.raises(InputError, match="holds no window"):
        read_traces([edited(folder, windows=[])])


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"kind": "other"}', "\xff", '{"a": ' * 100_000])
def test_a_manifest_that_is_none_leaves_a_folder_of_traces(tmp_path: Path, text: str) -> None:
    folder = windowed.recording(tmp_path / "r", windows(2))
    (folder / "recording.json").write_text(text, encoding="latin-1")
    found = read_traces([folder])
    assert len(found) == 2
    assert codes(found) == {"recording_unreadable": (1, "")}


def test_a_newer_recording_asks_for_an_update(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="newer version"):
        read_traces([edited(windowed.recording(tmp_path / "r", windows(1)), schema=2)])


def test_the_command_reports_on_a_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = windowed.recording(tmp_path / "spool" / "r", windows(3))
    assert main(["report", str(folder), "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["steps"]) == 3
    assert len(report["traces"]) == 3
    assert main(["report", *map(str, sorted(folder.glob("*.gz"))), "--json", "-"]) == 0
    assert len(json.loads(capsys.readouterr().out)["steps"]) == 3

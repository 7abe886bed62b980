"""The spool: complete files or none, within quota and age, on a disk that may be full, beside others."""

from __future__ import annotations

import contextlib
import errno
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.collect import raws
from traceanalyzer.collect import shelf as shelves
from traceanalyzer.collect import spool as spools
from traceanalyzer.collect.block import About
from traceanalyzer.collect.facts import RawWindow, Refused, Window
from traceanalyzer.collect.manifest import Manifest
from traceanalyzer.collect.spool import Plan, Spool
from traceanalyzer.trace import read_traces

LARGE = 10**10


def plan(**more: Any) -> Plan:
    given: dict[str, Any] = {"mode": "sample", "recorder": "python", "quota_bytes": LARGE, "keep_s": 1e6}
    return Plan(**{**given, **more})


@contextlib.contextmanager
def spooling(output: Path, **more: Any) -> Iterator[Spool]:
    spool = Spool(output, plan(**more))
    try:
        yield spool
    finally:
        assert spool.close(0, None, 30)


def window(spool: Spool, number: int, pids: tuple[int, ...] = (7,), **style: Any) -> Window:
    """A window with a raw file per process, and what its recorder leaves beside."""
    found = Window(number, "every", time.time_ns(), weight_s=5.0)
    for pid in pids:
        path = spool.raw / f"{pid}-{number}.json"
        path.with_suffix(".meta.json").write_text("{}")
        noise = raws.ops(style.get("events", 50))
        for event in noise[: style.get("noise", 0)]:
            event["name"] = os.urandom(500).hex()  # does not compress
        trace = raws.usual(steps=style.get("steps", 3), events=0)
        trace["traceEvents"] += noise
        raws.write(path, trace)
        found.raws.append(RawWindow(path, pid, "python", time.time_ns(), time.time_ns() + 10**8))
    return found


def take(spool: Spool, number: int, pids: tuple[int, ...] = (7,), **style: Any) -> dict[str, Any]:
    spool.add(window(spool, number, pids, **style), {pid: About({"pid": pid, "rank": pid - 7}) for pid in pids})
    entry = spool.wait(number, 30)
    assert entry is not None
    return entry


def manifest(spool: Spool) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((spool.folder / "recording.json").read_text())
    return found


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def on_disk(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.startswith("traceanalyzer-")}


def listed(facts: dict[str, Any]) -> set[str]:
    return {file["name"] for one in facts["windows"] for file in one["files"]}


def size(output: Path) -> int:
    return sum(path.stat().st_size for path in output.rglob("*") if path.is_file())


def test_a_recording_from_beginning_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with spooling(tmp_path / "o ut", tool_version="0.1", every_s=300.0) as spool:
        assert manifest(spool)["finished_at"] is None and manifest(spool)["windows"] == []
        one = take(spool, 1)
        two = take(spool, 2, pids=(7, 8), steps=4)
        spool.describe(
            processes=[{"pid": 7, "torch": "2.13.0"}], steplogs=["steps-7.csv.gz"], failures=[{"where": "x"}]
        )
    facts = manifest(spool)
    assert facts["windows"] == [one, two]
    assert {path.name for path in spool.folder.iterdir()} == {"recording.json", *listed(facts)}
    assert [file["rank"] for file in two["files"]] == [0, 1]
    assert two["files"][0]["phases"] == {"prefill": 1, "decode": 3}
    assert (one["weight_s"], one["reason"], one["ranks_missing"]) == (5.0, "every", [])
    assert facts["processes"] == [{"pid": 7, "torch": "2.13.0"}]
    assert (facts["exit_code"], facts["dropped"], facts["mode"]) == (0, {}, "sample")
    assert facts["finished_at"] > facts["created_at"]
    said = capsys.readouterr().err.splitlines()
    path = spool.folder / one["files"][0]["name"]
    assert len(said) == 2
    assert f"{path}, 3 steps, {path.stat().st_size} bytes; next: traceanalyzer report '{path}'" in said[0]
    assert f"next: traceanalyzer report '{spool.folder}'" in said[1]
    with gzip.open(path) as stream:
        block = json.load(stream)["traceanalyzer"]
    assert block["sampling"]["every_s"] == 300.0 and block["sampling"]["windows_taken"] == 1
    assert 0 < block["sampling"]["duty_share"] <= 1


def test_steps_that_ended_after_operations_were_taken_no_more_are_told_as_cut(tmp_path: Path) -> None:
    """Of three steps, which end 50, 150 and 250 us after the trace's begin, in two files; only one was told to stop."""
    with spooling(tmp_path) as spool:
        asked = window(spool, 1, pids=(7, 8))
        quiet = raws.BASE_NS + 200_000
        asked.raws = [replace(asked.raws[0], recorder="ondemand", quiet_ns=quiet), asked.raws[1]]
        spool.add(asked, {pid: About({"pid": pid, "rank": pid - 7}) for pid in (7, 8)})
        entry = spool.wait(1, 30)
    assert entry is not None
    blocks = []
    for file in entry["files"]:
        with gzip.open(spool.folder / file["name"]) as stream:
            blocks.append(json.load(stream)["traceanalyzer"]["window"])
    assert [file["steps"] for file in entry["files"]] == [2, 3]
    assert [(block["unfinished_steps"], block["complete"]) for block in blocks] == [(1, False), (0, True)]
    assert [block.get("quiet_ns") for block in blocks] == [quiet, None]


def test_the_analyzer_reads_the_recording(tmp_path: Path) -> None:
    with spooling(tmp_path) as spool:
        take(spool, 1, pids=(7, 8))
    found = read_traces([tmp_path])
    assert sorted(trace.metadata.rank or 0 for trace in found) == [0, 1]
    assert not {note.code for trace in found for note in trace.quality} & {
        "recording_files_missing", "recording_files_changed", "recording_unfinished", "recording_unreadable",
    }  # fmt: skip


def test_names_are_as_documented(tmp_path: Path) -> None:
    with spooling(tmp_path) as spool:
        found = Window(1, "http", raws.BASE_NS)
        for pid in (7, 8):
            path = raws.write(spool.raw / f"{pid}-1.json", raws.usual())
            found.raws.append(RawWindow(path, pid, "ondemand", 1_796_016_000_123_456_789))
        found.raws.append(
            RawWindow(raws.write(spool.raw / "7-2.json", raws.usual()), 7, "ondemand", 1_796_016_000_123_000_000)
        )
        spool.add(found, {8: About({"rank": 3})})
        entry = spool.wait(1, 30)
    host = manifest(spool)["host_hash"]
    assert entry is not None and [file["name"] for file in entry["files"]] == [
        f"traceanalyzer-{host}-7-rank0-20261130T052000.123Z.pt.trace.json.gz",
        f"traceanalyzer-{host}-8-rank3-20261130T052000.123Z.pt.trace.json.gz",
        f"traceanalyzer-{host}-7-rank0-20261130T052000.124Z.pt.trace.json.gz",
    ]
    assert [file["rank"] for file in entry["files"]] == [None, 3, None]


def test_what_is_damaged_or_missing_is_counted_not_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with spooling(tmp_path, verbose=True) as spool:
        bad = window(spool, 1, pids=(7, 8))
        bad.raws[0].path.write_text(bad.raws[0].path.read_text()[:-200])
        bad.raws[1].path.unlink()
        spool.add(bad, {})
        assert spool.wait(1, 30) is not None and spool.wait(1, 0)["files"] == []  # type: ignore[index]
        spool.add(Window(2, "every", 1, missing=[9, 10]), {9: About({"rank": 2})})
        assert spool.wait(2, 30)["ranks_missing"] == [2, None]  # type: ignore[index]
        until(lambda: not list(spool.raw.iterdir()))
        assert spool.stopped is None
        take(spool, 3)
    facts = manifest(spool)
    assert facts["dropped"] == {"damaged": 1, "no_file": 2}
    assert [one["number"] for one in facts["windows"]] == [3]
    assert [(one["number"], one["why"]) for one in facts["failed"]] == [
        (1, "its file was not there any more; its trace is damaged: cut off, or no JSON"), (2, "its file was not kept"),
    ]  # fmt: skip
    assert (spool.folder / "damaged.json").exists()  # asked for
    assert "damaged" in capsys.readouterr().err


def test_the_oldest_files_of_all_recordings_go_first(tmp_path: Path) -> None:
    with spooling(tmp_path) as first:
        for number in range(1, 4):
            take(first, number, noise=40)
        (first.folder / "steps-7.csv.gz").write_bytes(b"x" * 30_000)
    for place, path in enumerate(sorted(first.folder.glob("trace*.gz"))):
        os.utime(path, (time.time() - 1000 + place, time.time() - 1000 + place))
    before = [path.name for path in sorted(first.folder.glob("trace*.gz"))]
    stranger = tmp_path / "20200101T000000.000Z-0123456789ab-1"
    stranger.mkdir()
    (stranger / "thesis.txt").write_text("x" * 1000)
    each = max(path.stat().st_size for path in first.folder.glob("trace*.gz"))
    quota = size(tmp_path) - 1000 + 4000 - each // 2  # room for one more only when one goes
    with spooling(tmp_path, quota_bytes=quota) as second:
        take(second, 1, noise=20)
    assert on_disk(first.folder) == set(before[1:]) == listed(manifest(first))
    assert manifest(first)["dropped"] == {"quota": 1}
    assert [one["number"] for one in manifest(first)["windows"]] == [2, 3]
    assert (stranger / "thesis.txt").exists()
    assert len(on_disk(second.folder)) == 1


def test_a_storm_takes_no_more_than_the_quota(tmp_path: Path) -> None:
    quota = 300_000
    with spooling(tmp_path, quota_bytes=quota) as spool:
        for number in range(1, 40):
            take(spool, number, noise=40)
            assert size(tmp_path) <= quota + 100
        last = spool.wait(39, 1)
        facts = spool.manifest()
    assert last is not None and last["files"][0]["name"] in on_disk(spool.folder)
    facts = manifest(spool)
    assert listed(facts) == on_disk(spool.folder)
    assert len(facts["windows"]) + facts["dropped"]["quota"] == 39
    assert [one["number"] for one in facts["windows"]] == list(range(40 - len(facts["windows"]), 40))
    assert spool.stopped is None


def test_a_file_larger_than_the_quota_takes_nothing_with_it(tmp_path: Path) -> None:
    with spooling(tmp_path, quota_bytes=60_000) as spool:
        small = take(spool, 1)
        assert take(spool, 2, noise=200, events=200)["files"] == []
        assert on_disk(spool.folder) == {small["files"][0]["name"]}
    assert manifest(spool)["dropped"] == {"quota": 1}


def test_a_whole_run_stops_at_the_quota_and_keeps_its_beginning(tmp_path: Path) -> None:
    with spooling(tmp_path) as old:
        take(old, 1, noise=40)
    with spooling(tmp_path, quota_bytes=200_000, mode="full") as spool:
        number = 0
        while spool.stopped != "quota":
            number += 1
            assert number < 30
            take(spool, number, noise=40)
    assert not on_disk(old.folder)
    assert [one["number"] for one in manifest(spool)["windows"]] == list(range(1, number))


def test_old_files_go(tmp_path: Path) -> None:
    with spooling(tmp_path) as first:
        take(first, 1)
        take(first, 2)
    aged = sorted(first.folder.glob("trace*.gz"))[0]
    os.utime(aged, (time.time() - 5000, time.time() - 5000))
    with spooling(tmp_path, keep_s=4000) as second:
        take(second, 1)
        assert not aged.exists()
        os.utime(sorted(first.folder.glob("trace*.gz"))[0], (1, 1))
        os.utime(first.folder / "recording.json", (1, 1))
        take(second, 2)
        assert manifest(first)["dropped"] == {"age": 2} and manifest(first)["windows"] == []
        os.utime(first.folder / "recording.json", (1, 1))
        shelves.Shelf(tmp_path).forget_empty(time.time() - 4000)
    assert not first.folder.exists()
    assert len(on_disk(second.folder)) == 2


def test_more_than_can_be_finished_is_dropped_and_holds_recording_back(tmp_path: Path) -> None:
    real = spools.scan
    with spooling(tmp_path) as spool, mock.patch.object(spools, "scan") as slow:
        slow.side_effect = lambda *args: (time.sleep(0.01), real(*args))[1]
        for number in range(1, 101):
            spool.add(window(spool, number, events=1), {})
        assert spool.stopped == "behind"
        until(lambda: spool.stopped is None)
    facts = manifest(spool)
    assert 1 <= facts["dropped"]["behind"] <= 100 - spools.MOST_WAITING
    assert len(facts["windows"]) + facts["dropped"]["behind"] == 100
    assert listed(facts) == on_disk(spool.folder)


def test_the_last_windows_without_a_file_are_listed_with_why(tmp_path: Path) -> None:
    with spooling(tmp_path) as spool:
        for number in range(1, 151):
            spool.add(Window(number, "every", 1, failed=Refused("idle", f"no step ran {number}")), {})
            assert spool.wait(number, 30) is not None
        partly = window(spool, 151)
        partly.missing, partly.lost, partly.tries = [8], {8: "the process ended"}, 2
        spool.add(partly, {})
        entry = spool.wait(151, 30)
    facts = manifest(spool)
    assert [(one["number"], one["why"]) for one in facts["failed"]] == [
        (number, f"no step ran {number}") for number in range(51, 151)
    ]
    assert facts["windows"] == [entry] and entry is not None
    assert (entry["why"], entry["tries"], len(entry["files"])) == ("the process ended", 2, 1)


def test_a_failure_of_ours_costs_one_window(tmp_path: Path) -> None:
    with spooling(tmp_path) as spool, mock.patch("threading.excepthook"):
        with mock.patch.object(spools, "scan", side_effect=KeyError):
            assert take(spool, 1)["files"] == []
        until(lambda: not spool._worker.is_alive())
        spool.tick()
        assert take(spool, 2)["files"]
        assert not list(spool.raw.iterdir())


def tmpfs(folder: Path, bytes_: int) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"size={bytes_}", "tmpfs", str(folder)]
    try:
        return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
    except OSError:
        return False


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], None], Callable[[], None]]]:
    """A folder on a disk of 2 MB, how to fill it up, and how to free it again.

    Where no disk may be mounted, a full one is played: writes to that folder fail as the kernel would have them fail.
    """
    folder = tmp_path / "disk"
    folder.mkdir()
    if tmpfs(folder, 2 << 20):
        try:
            yield folder, lambda: _fill(folder / "filler"), (folder / "filler").unlink
        finally:
            subprocess.run(["umount", "-l", str(folder)], timeout=20, check=True)
        return
    full = OSError(errno.ENOSPC, "No space left on device")
    with contextlib.ExitStack() as stack:

        def fill() -> None:
            for name in ("os.posix_fallocate", "os.fsync"):
                stack.enter_context(mock.patch(name, side_effect=full))

        yield folder, fill, stack.close


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(b"x" * 512)


def test_a_full_disk_stops_the_recording_and_nothing_else(
    small_disk: tuple[Path, Callable[[], None], Callable[[], None]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, fill, free = small_disk
    with spooling(folder, retry_s=0.2) as spool:
        whole = take(spool, 1)
        lost = window(spool, 2, noise=40)
        until(lambda: bool(listed(manifest(spool))))
        fill()
        spool.add(lost, {})
        assert spool.wait(2, 30)["files"] == []  # type: ignore[index]
        assert spool.stopped == "disk_full"
        assert on_disk(spool.folder) == listed(manifest(spool)) == {whole["files"][0]["name"]}
        time.sleep(0.5)
        assert spool.stopped == "disk_full"  # it was looked at again meanwhile
        spool.describe(failures=[{"where": "x"}])  # the manifest cannot be written now
        spool.tick()
        free()
        until(lambda: spool.stopped is None)
        again = take(spool, 3)
    assert on_disk(spool.folder) == {whole["files"][0]["name"], again["files"][0]["name"]}
    facts = manifest(spool)
    assert facts["dropped"] == {"disk_full": 1} and facts["failures"] == [{"where": "x"}]
    assert [one["number"] for one in facts["windows"]] == [1, 3]
    said = capsys.readouterr().err
    assert said.count("the disk is full") == 1 and "recording goes on" in said


LIMITED = """
import resource, sys, time
from pathlib import Path
from tests.collect.test_spool import *
with spooling(Path(sys.argv[1]), retry_s=0.1) as spool:
    take(spool, 1)
    bad = window(spool, 2, noise=400, events=400)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    spool.add(bad, {})
    assert spool.wait(2, 30)["files"] == []
    assert spool.stopped == "disk_full", spool.stopped
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    until(lambda: spool.stopped is None)
    take(spool, 3)
"""


def test_a_limit_on_files_is_a_full_disk(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    done = subprocess.run(command, timeout=60, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("2*")
    facts = json.loads((folder / "recording.json").read_text())
    assert [one["number"] for one in facts["windows"]] == [1, 3]
    assert {path.name for path in folder.iterdir()} == {"recording.json", *listed(facts)}


def test_a_folder_that_is_gone_is_no_error_for_the_main_loop(tmp_path: Path) -> None:
    with spooling(tmp_path / "out", retry_s=0.1) as spool:
        lost = window(spool, 1)
        (tmp_path / "out").rename(tmp_path / "elsewhere")
        spool.add(lost, {})
        assert spool.wait(1, 30)["files"] == []  # type: ignore[index]
        until(lambda: spool.stopped == "disk_error")
        spool.tick()


KILLED = """
import sys, time
from pathlib import Path
from unittest import mock
from tests.collect.test_spool import *
from traceanalyzer.collect import finish as finishing
spool = Spool(Path(sys.argv[1]), plan())
take(spool, 1)
until(lambda: len(manifest(spool)["windows"]) == 1)
real = finishing._pieces
def slow(*arguments):
    for piece in real(*arguments):
        yield piece
        print("writing", flush=True)
        time.sleep(60)
with mock.patch.object(finishing, "_pieces", slow):
    spool.add(window(spool, 2), {})
    spool.add(window(spool, 3), {})
    time.sleep(60)
"""


def test_killed_while_finishing_leaves_nothing_half_written_in_the_list(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "writing\n"
        (folder,) = tmp_path.glob("2*")
        assert list(folder.glob("*.tmp"))
        with spooling(tmp_path):  # beside it, while it lives
            assert list(folder.glob("*.tmp")) and len(list((folder / ".raw").glob("*.json"))) == 4
        process.send_signal(signal.SIGKILL)
    facts = json.loads((folder / "recording.json").read_text())
    assert len(listed(facts)) == 1 and {path.name for path in folder.glob("*.gz")} == listed(facts)
    with spooling(tmp_path):
        assert {path.name for path in folder.iterdir()} == {"recording.json", *listed(facts)}
    after = json.loads((folder / "recording.json").read_text())
    assert after["dropped"] == {"supervisor_lost": 2} and after["windows"] == facts["windows"]


def test_two_supervisors_share_a_folder(tmp_path: Path) -> None:
    quota = 200_000
    with spooling(tmp_path, quota_bytes=quota) as one, spooling(tmp_path, quota_bytes=quota) as two:
        assert one.folder != two.folder
        for number in range(1, 20):
            waiting = window(one, 1000 + number)  # open work of the other one
            take(two, number, noise=40)
            assert all(raw.path.exists() for raw in waiting.raws)
            one.add(waiting, {})
            assert one.wait(1000 + number, 30)["files"]  # type: ignore[index]
            time.sleep(0.001)
        with mock.patch.object(one, "_maintain_at", 0.0):
            take(one, 5000)
        assert sum(path.stat().st_size for path in tmp_path.rglob("trace*.gz")) <= quota
    for spool in (one, two):
        facts = manifest(spool)
        assert listed(facts) == on_disk(spool.folder)
        kept = sum(len(entry["files"]) for entry in facts["windows"])
        assert kept + sum(facts["dropped"].values()) == (20 if spool is one else 19)
    assert not list(tmp_path.rglob("*.tmp"))


def test_another_hosts_recording_is_left_alone_until_it_is_silent(tmp_path: Path) -> None:
    folder = tmp_path / "20261130T052000.123Z-0123456789ab-1"
    (folder / ".raw").mkdir(parents=True)
    raw = raws.write(folder / ".raw" / "7-1.json", raws.usual())
    (folder / ".lock").touch()
    shelves.Shelf(tmp_path).clean()
    assert raw.exists()
    os.utime(folder / ".lock", (1, 1))
    shelves.Shelf(tmp_path).clean()
    assert not raw.exists()


def test_a_lock_that_another_user_made_keeps_nobody_from_recording(tmp_path: Path) -> None:
    closed = PermissionError(errno.EACCES, "Permission denied")
    with mock.patch("os.open", side_effect=closed), shelves.Shelf(tmp_path).alone() as alone:
        assert alone


def test_where_there_are_no_locks_room_is_made_and_nothing_is_cleaned(tmp_path: Path) -> None:
    folder = tmp_path / f"20261130T052000.123Z-{shelves.this_host()}-1"
    (folder / ".raw").mkdir(parents=True)
    raw = raws.write(folder / ".raw" / "7-1.json", raws.usual())
    (folder / ".lock").touch()
    with mock.patch("fcntl.flock", side_effect=OSError(errno.ENOSYS, "Function not implemented")):
        began = time.monotonic()
        with shelves.Shelf(tmp_path).alone() as alone:
            assert alone and time.monotonic() - began < 1
        shelves.Shelf(tmp_path).clean()
    assert raw.exists()


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "traceanalyzer-x.pt.trace.json.gz").write_bytes(b"x" * 10_000)
    output = tmp_path / "out"
    output.mkdir()
    (output / "20261130T052000.123Z-0123456789ab-1").symlink_to(outside)
    folder = output / "20261130T052000.124Z-0123456789ab-1"
    folder.mkdir()
    (folder / ".raw").symlink_to(outside)
    (folder / ".lock").touch()
    os.utime(folder / ".lock", (1, 1))
    with spooling(output, quota_bytes=5000, keep_s=1.0):
        pass
    assert [path.name for path in outside.iterdir()] == ["traceanalyzer-x.pt.trace.json.gz"]


def test_a_folder_that_cannot_be_made_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        Spool(tmp_path / "file", plan())


def test_a_long_manifest_is_written_less_often(tmp_path: Path) -> None:
    found = Manifest(tmp_path / "recording.json", {"windows": []})
    with mock.patch("time.monotonic", side_effect=[0.0, 0.1, 1.0, 3.0, 3.1]):
        found.write()
        found.count_dropped("age")
        found.write()
        assert "dropped" not in json.loads(found.path.read_text())
        found.write()
        assert json.loads(found.path.read_text())["dropped"] == {"age": 1}

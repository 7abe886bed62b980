"""Blobs: whole or not at all, on the disk before they are told of, and under no name that a stranger chose."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from traceanalyzer.errors import InputError
from traceanalyzer.server import blobs as module
from traceanalyzer.server.blobs import REPORTS, Blobs, key_of_report, key_of_trace
from traceanalyzer.server.settings import Settings

SHA = "ab" * 32
OTHER = "cd" * 32

# Kills itself when the audit hook sees the given call for the given time; the body is 3 MB.
KILLED = """
import errno, os, signal, sys
from pathlib import Path
from traceanalyzer.server import blobs
from traceanalyzer.server.settings import Settings

root, place, copies = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "copies"
store = blobs.Blobs(Settings(folder=root))
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
if copies:
    def no(*_, **__):
        raise OSError(errno.EXDEV, "another file system")
    os.link = no
if place == "copying":
    def half(source, target, *_):
        target.write(source.read(1_000_000)); target.flush(); die()
    blobs.shutil.copyfileobj = half
elif place == "replacing":
    blobs.Path.replace = die
elif place == "syncing":
    blobs.sync_folder = die
store.put_file(blobs.key_of_trace("ab" * 32), root / "body")
"""


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(Settings(folder=tmp_path))


@pytest.fixture
def body(tmp_path: Path) -> Path:
    path = tmp_path / "body"
    path.write_bytes(os.urandom(3_000_000))
    return path


@pytest.fixture(params=["linked", "copied"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways into the folder: a second name on the same file system, a copy from another one."""
    if request.param == "copied":

        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.EXDEV, "another file system")

        monkeypatch.setattr(os, "link", refuse)
    return str(request.param)


def test_what_was_put_is_read_back(blobs: Blobs, body: Path, tmp_path: Path, how: str) -> None:
    key = key_of_trace(SHA)
    assert blobs.size(key) is None
    blobs.put_file(key, body)
    pieces = list(blobs.open(key))
    assert b"".join(pieces) == body.read_bytes()
    assert all(type(piece) is bytes for piece in pieces)
    assert len(pieces) >= 2
    assert blobs.size(key) == 3_000_000
    assert list(blobs.keys()) == list(blobs.keys("traces/")) == [key]
    assert list(blobs.keys("reports/")) == []
    blobs.delete(key)
    blobs.delete(key)
    assert blobs.size(key) is None
    assert not (tmp_path / "blobs" / key).parent.exists()
    assert list(blobs.keys()) == []
    with pytest.raises(FileNotFoundError):
        blobs.open(key)
    assert body.exists()


def test_putting_again_replaces(blobs: Blobs, body: Path, tmp_path: Path, how: str) -> None:
    key = key_of_report(SHA, "page.html")
    blobs.put_file(key, body)
    blobs.put_file(key, body)
    body.unlink()
    newer = tmp_path / "newer"
    newer.write_bytes(b"newer")
    reading = blobs.open(key)
    blobs.put_file(key, newer)
    assert b"".join(blobs.open(key)) == b"newer"
    # Who was reading goes on reading what there was.
    assert len(b"".join(reading)) == 3_000_000
    assert not list((tmp_path / "blobs" / ".staging").iterdir())


def test_it_is_synced_before_it_is_visible_and_its_folders_after(
    blobs: Blobs, body: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    order: list[str | int] = []
    sync, replace = os.fsync, Path.replace

    def told(descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink()
        order.append(name.stat().st_ino if name.is_file() else name.relative_to(tmp_path).as_posix())
        sync(descriptor)

    def replaced(self: Path, target: Path) -> Path:
        order.append("visible")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", told)
    monkeypatch.setattr(Path, "replace", replaced)
    key = key_of_trace(SHA)
    blobs.put_file(key, body)
    assert (tmp_path / "blobs" / key).stat().st_ino in order[: order.index("visible")]
    assert [name for name in order if isinstance(name, str)] == ["blobs", "blobs/traces", "visible", "blobs/traces/ab"]


@pytest.mark.parametrize(
    ("place", "copies", "there"),
    [("copying", True, False), ("replacing", True, False), ("replacing", False, False), ("syncing", False, True)],
)
def test_a_kill_leaves_all_or_nothing(tmp_path: Path, body: Path, place: str, copies: bool, there: bool) -> None:
    # The folders exist, so that the first sync of a folder is the one after the blob is in place.
    first = Blobs(Settings(folder=tmp_path))
    first.put_file(key_of_trace("ab" + "0" * 62), body)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), place, "copies" if copies else "links"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == -9, done.stderr
    key = key_of_trace(SHA)
    after = Blobs(Settings(folder=tmp_path))
    assert (after.size(key) == 3_000_000) is there
    assert (key in set(after.keys())) is there
    staging = tmp_path / "blobs" / ".staging"
    assert there or len(list(staging.iterdir())) == 1
    after.tidy()
    assert not list(staging.iterdir())
    after.put_file(key, body)
    assert b"".join(after.open(key)) == body.read_bytes()


def test_opening_the_store_beside_a_running_server_takes_nothing_away(tmp_path: Path, blobs: Blobs) -> None:
    left = tmp_path / "blobs" / ".staging" / "being-put"
    left.write_bytes(b"1")
    Blobs(Settings(folder=tmp_path))
    assert left.exists()


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "traces",
        "../server.sqlite3",
        "traces/../../etc/passwd",
        f"traces/cd/{SHA}",
        f"traces/ab/{SHA.upper()}",
        f"traces/ab/{SHA}\n",
        f"traces/ab/{SHA}/x",
        f"reports/ab/{SHA}/../x",
        f"reports/ab/{SHA}/page.html\0",
        f"reports/ab/{SHA}/other.html",
        f"/traces/ab/{SHA}",
        f"traces//ab/{SHA}",
        ".staging/x",
    ],
)
def test_no_other_key_reaches_the_disk(blobs: Blobs, body: Path, key: str) -> None:
    for call in (lambda: blobs.put_file(key, body), lambda: blobs.open(key), lambda: blobs.size(key)):
        with pytest.raises(InputError):
            call()
    with pytest.raises(InputError):
        blobs.delete(key)


@pytest.mark.parametrize(
    "sha256", ["", "ab", "AB" * 32, "../" + "a" * 61, "g" * 64, SHA + "\n", "\N{DIGIT ONE}" * 63 + "٣"]
)
def test_a_key_needs_a_hash(sha256: str) -> None:
    with pytest.raises(InputError):
        key_of_trace(sha256)
    with pytest.raises(InputError):
        key_of_report(sha256, "page.html")


def test_a_report_has_three_kinds() -> None:
    assert [key_of_report(SHA, kind) for kind in REPORTS] == [f"reports/ab/{SHA}/{kind}" for kind in REPORTS]
    with pytest.raises(InputError):
        key_of_report(SHA, "../page.html")


def test_only_a_regular_file_is_stored(blobs: Blobs, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("not yours")
    link = tmp_path / "link"
    link.symlink_to(secret)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (link, pipe, tmp_path):
        with pytest.raises(InputError):
            blobs.put_file(key_of_trace(SHA), path)
    with pytest.raises(FileNotFoundError):
        blobs.put_file(key_of_trace(SHA), tmp_path / "nothing")
    assert list(blobs.keys()) == []


def test_a_file_that_is_swapped_while_it_is_stored_is_not_followed(
    blobs: Blobs, body: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = body.read_bytes()
    other = tmp_path / "other"
    other.write_bytes(b"another file")
    really = os.link

    def swapped(source: Path, target: Path, **more: Any) -> None:
        other.replace(body)
        really(source, target, **more)

    monkeypatch.setattr(os, "link", swapped)
    blobs.put_file(key_of_trace(SHA), body)
    assert b"".join(blobs.open(key_of_trace(SHA))) == content


def test_threads_put_and_delete_in_one_folder(blobs: Blobs, body: Path) -> None:
    """Reports of one trace come and go; a folder that is emptied by one must not vanish under another."""
    failed: list[BaseException] = []

    def work(kind: str) -> None:
        try:
            for _ in range(30):
                blobs.put_file(key_of_report(OTHER, kind), body)
                blobs.delete(key_of_report(OTHER, kind))
        except BaseException as error:  # told by the assert below
            failed.append(error)

    threads = [threading.Thread(target=work, args=(kind,)) for kind in REPORTS * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not failed
    assert list(blobs.keys()) == []


def test_what_is_not_ours_in_the_folder_is_not_listed(blobs: Blobs, body: Path, tmp_path: Path) -> None:
    blobs.put_file(key_of_trace(SHA), body)
    (tmp_path / "blobs" / "traces" / "ab" / "note.txt").write_text("mine")
    (tmp_path / "blobs" / "lost+found").mkdir()
    assert list(blobs.keys()) == [key_of_trace(SHA)]


def test_another_store_needs_only_its_address(tmp_path: Path, body: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    blobs = Blobs(Settings(folder=tmp_path, blob_url=f"file://{tmp_path}/elsewhere"))
    key = key_of_trace(SHA)
    blobs.put_file(key, body)
    assert b"".join(blobs.open(key)) == body.read_bytes()
    assert (blobs.size(key), list(blobs.keys("traces/"))) == (3_000_000, [key])
    assert (tmp_path / "elsewhere" / key).stat().st_size == 3_000_000
    blobs.tidy()
    blobs.delete(key)
    assert blobs.size(key) is None
    assert module._STAGING not in {path.name for path in (tmp_path / "elsewhere").iterdir()}

"""Backups: what goes in comes out byte by byte, and nothing else is ever taken in."""

from __future__ import annotations

import io
import json
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.server.serving import command, sha256, trace_gz
from traceanalyzer.errors import InputError
from traceanalyzer.server import restore as restoring
from traceanalyzer.server.backup import backup
from traceanalyzer.server.blobs import REPORTS, key_of_report, key_of_trace
from traceanalyzer.server.folder import claimed
from traceanalyzer.server.restore import restore
from traceanalyzer.server.services import Services
from traceanalyzer.server.settings import Settings
from traceanalyzer.server.traces import Found, Labels

NOW = 1_800_000_000_000
MEMBERS = 3 + len(REPORTS) + 1
Change = Callable[[list[tuple[str, bytes]]], list[tuple[str, bytes]]]


def add(services: Services, folder: Path, body: bytes, **labels: str) -> str:
    digest = sha256(body)
    path = folder / "body"
    path.write_bytes(body)
    services.blobs.put_file(key_of_trace(digest), path)
    path.unlink()
    services.traces.add(digest, len(body), 10 * len(body), Labels(**labels), None, NOW)
    return digest


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Settings, list[bytes]]:
    """Three traces, one with its report; two tokens and a link."""
    settings = Settings(folder=tmp_path / "server")
    services = Services.open(settings)
    bodies = [trace_gz(seed, 20) for seed in range(3)]
    first, *_ = [add(services, tmp_path, body, model=f"model-{place}") for place, body in enumerate(bodies)]
    for kind in REPORTS:
        (tmp_path / "report").write_text(f"the {kind}")
        services.blobs.put_file(key_of_report(first, kind), tmp_path / "report")
        (tmp_path / "report").unlink()
    services.traces.set_analysed(first, Found(report_id="r", analyser="1", headline="memory-bound"), NOW)
    services.tokens.make("ci", ("upload",))
    services.links.make(first, "somebody", None)
    settings.secret_path.write_bytes(b"SIGNS-SESSIONS")
    services.close()
    return settings, bodies


@pytest.fixture
def saved(stored: tuple[Settings, list[bytes]], tmp_path: Path) -> Path:
    backup(stored[0], tmp_path / "backup.tar")
    return tmp_path / "backup.tar"


def members(path: Path) -> list[tuple[str, bytes]]:
    with tarfile.open(path) as tar:
        return [(one.name, tar.extractfile(one).read()) for one in tar]  # type: ignore[union-attr]


def write(path: Path, contents: list[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in contents:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def relisted(contents: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """The same with a list of contents that fits, as somebody would write who makes a file up."""
    rest = [(name, data) for name, data in contents if name != "manifest.json"]
    listed = {name: [len(data), sha256(data)] for name, data in rest}
    return [*rest, ("manifest.json", json.dumps({"schema": 1, "members": listed}).encode())]


def test_what_was_stored_comes_back(stored: tuple[Settings, list[bytes]], saved: Path, tmp_path: Path) -> None:
    _, bodies = stored
    told = restore(saved, tmp_path / "new")
    assert told.traces == 3
    services = Services.open(Settings(folder=tmp_path / "new"))
    for place, body in enumerate(bodies):
        row = services.traces.get(sha256(body))
        assert row is not None
        assert (row.model, row.bytes, row.uploaded_at) == (f"model-{place}", len(body), NOW)
        assert b"".join(services.blobs.open(key_of_trace(sha256(body)))) == body
    first = sha256(bodies[0])
    assert {kind: b"".join(services.blobs.open(key_of_report(first, kind))) for kind in REPORTS} == {
        kind: f"the {kind}".encode() for kind in REPORTS
    }
    assert services.traces.get(first).headline == "memory-bound"  # type: ignore[union-attr]
    assert services.tokens.any_active() and len(services.links.of(first)) == 1
    services.close()


def test_the_file_is_private_holds_no_secret_and_is_alone(saved: Path) -> None:
    assert saved.stat().st_mode & 0o777 == 0o600
    names = [name for name, _ in members(saved)]
    assert len(names) == MEMBERS + 1 and names[-2:] == ["server.sqlite3", "manifest.json"]
    assert b"SIGNS-SESSIONS" not in saved.read_bytes()
    assert not [path for path in saved.parent.iterdir() if path.name.startswith(".")]


def test_a_trace_that_is_deleted_meanwhile_is_not_in_the_backup(
    stored: tuple[Settings, list[bytes]], tmp_path: Path
) -> None:
    """Its row is in the copy of the database already when its blob turns out to be gone."""
    settings, bodies = stored
    services = Services.open(settings)
    last = max(map(sha256, bodies))  # they go in by their names' order

    def watch(traces: int) -> None:
        if traces == 1:
            services.traces.delete(last)
            services.blobs.delete(key_of_trace(last))

    assert backup(settings, tmp_path / "b.tar", watch).traces == 2
    services.close()
    assert restore(tmp_path / "b.tar", tmp_path / "new").traces == 2
    again = Services.open(Settings(folder=tmp_path / "new"))
    assert again.traces.get(last) is None and again.traces.find(_all()).total == 2
    again.close()


def _all():
    from traceanalyzer.server.traces import Search

    return Search()


def test_a_trace_that_comes_meanwhile_disturbs_nothing(stored: tuple[Settings, list[bytes]], tmp_path: Path) -> None:
    settings, _ = stored
    services = Services.open(settings)
    told = backup(settings, tmp_path / "b.tar", lambda n: add(services, tmp_path, trace_gz(90 + n, 20)) and None)
    services.close()
    assert told.traces == 3
    assert restore(tmp_path / "b.tar", tmp_path / "new").traces == 3


@pytest.mark.parametrize("change", ["flipped", "shorter", "longer"])
def test_a_damaged_blob_is_told_and_no_file_is_left(
    stored: tuple[Settings, list[bytes]], tmp_path: Path, change: str
) -> None:
    settings, bodies = stored
    digest = sha256(bodies[1])
    (blob,) = (settings.folder / "blobs").rglob(digest)
    data = bytearray(bodies[1])
    data[50] ^= 1
    blob.write_bytes({"flipped": bytes(data), "shorter": bodies[1][:-1], "longer": bodies[1] + b"x"}[change])
    with pytest.raises(InputError, match=digest):
        backup(settings, tmp_path / "b.tar")
    assert not [path for path in tmp_path.iterdir() if "b.tar" in path.name]


HOSTILE: dict[str, Change] = {
    "a path that leads out": lambda c: relisted([("../../evil", b"x"), *c]),
    "an absolute path": lambda c: relisted([("/tmp/evil", b"x"), *c]),
    "a path within a name": lambda c: relisted([("traces/../../evil", b"x"), *c]),
    "an unknown report": lambda c: relisted([(f"reports/{'a' * 64}/evil.sh", b"x"), *c]),
    "another database": lambda c: relisted([("queue.sqlite3", b"x"), *c]),
    "the signing secret": lambda c: relisted([("secret", b"x"), *c]),
    "a trace under another name": lambda c: relisted([(f"traces/{'a' * 64}", b"x"), *c]),
    "one name twice": lambda c: [c[0], *c],
    "something after the end": lambda c: [*c, c[0]],
    "no list of contents": lambda c: c[:-1],
    "a trace that is missing": lambda c: relisted([m for m in c if m != next(m for m in c if m[0][:7] == "traces/")]),
    "a member less than listed": lambda c: c[1:],
    "no database": lambda c: relisted([m for m in c if m[0] != "server.sqlite3"]),
    "a database that is none": lambda c: relisted([(n, b"x" * 5000 if n == "server.sqlite3" else d) for n, d in c]),
    "a changed report": lambda c: [(n, d + b"x" if n.startswith("reports") else d) for n, d in c],
    "a list of contents that is none": lambda c: [*c[:-1], ("manifest.json", b"[" * 100_000)],
    "a later version": lambda c: [*c[:-1], ("manifest.json", b'{"schema": 2, "members": {}}')],
}


@pytest.mark.parametrize("what", HOSTILE)
def test_nothing_is_taken_in_that_a_backup_cannot_hold(saved: Path, tmp_path: Path, what: str) -> None:
    before = set(tmp_path.parent.rglob("*"))
    bad = write(tmp_path / "bad.tar", HOSTILE[what](members(saved)))
    folder = tmp_path / "new"
    with pytest.raises(InputError):
        restore(bad, folder)
    left = set(tmp_path.parent.rglob("*")) - before - {bad, folder, folder / "lock"}
    assert not left
    assert restore(saved, folder).traces == 3  # and the folder is as good as it was


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE])
def test_links_and_devices_are_refused(saved: Path, tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "bad.tar", "w") as tar:
        info = tarfile.TarInfo(f"traces/{'a' * 64}")
        info.type, info.linkname = kind, "/etc/passwd"
        tar.addfile(info)
    with pytest.raises(InputError, match="does not belong"):
        restore(tmp_path / "bad.tar", tmp_path / "new")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["lock"]


def headed(path: Path, name: str, data: bytes, headers: dict[str, str]) -> Path:
    """A tar of one member with extended headers of its own."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo(name)
        info.size, info.pax_headers = len(data), headers
        tar.addfile(info, io.BytesIO(data))
    return path


def sparse(size: str, layout: str) -> dict[str, str]:
    return {"GNU.sparse.map": layout, "GNU.sparse.size": size, "GNU.sparse.numblocks": "1"}


TRACE = f"traces/{'a' * 64}"


@pytest.mark.parametrize(
    ("name", "headers", "told"),
    [
        ("nonsense", sparse(str(3 << 30), "0,1"), "does not belong"),
        (TRACE, sparse(str(3 << 30), "0,1"), "does not belong"),
        ("server.sqlite3", sparse(str(3 << 30), "0,1"), "does not belong"),
        ("nonsense", {}, "does not belong"),
        (TRACE, {"size": str(3 << 30)}, "cut off"),
        (TRACE, {"size": "-512"}, "cut off|no backup"),
        (TRACE, {"GNU.sparse.map": "a,b"}, "no backup"),
        (TRACE, {"GNU.sparse.map": "0,1", "GNU.sparse.size": "zz"}, "no backup"),
        (TRACE, {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "x"}, "no backup"),
    ],
)
def test_a_head_is_looked_at_before_anything_of_its_member_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, headers: dict[str, str], told: str
) -> None:
    written: list[Path] = []
    monkeypatch.setattr(restoring, "_copied", lambda stream, part: written.append(part) or "")
    bad = headed(tmp_path / "bad.tar", name, b"x", headers)
    assert bad.stat().st_size <= 10_240
    with pytest.raises(InputError, match=told):
        restore(bad, tmp_path / "new")
    assert not written
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["lock"]


def test_a_head_that_says_it_is_longer_than_any_memory_is_refused(tmp_path: Path) -> None:
    head = tarfile.TarInfo("x")
    head.type, head.size = tarfile.XHDTYPE, 1 << 62
    (tmp_path / "bad.tar").write_bytes(head.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(InputError, match="a head is too long"):
        restore(tmp_path / "bad.tar", tmp_path / "new")


def test_a_chain_of_heads_is_refused(tmp_path: Path) -> None:
    head = tarfile.TarInfo("x")
    head.type = tarfile.XHDTYPE
    (tmp_path / "bad.tar").write_bytes(head.tobuf() * 5000)
    with pytest.raises(InputError, match="no backup"):
        restore(tmp_path / "bad.tar", tmp_path / "new")


@pytest.mark.parametrize(
    "statements",
    [
        "CREATE TABLE traces (name TEXT)",
        "CREATE VIEW traces AS SELECT 1",
        "CREATE TABLE alembic_version (version_num TEXT); INSERT INTO alembic_version VALUES ('0001')",
        "CREATE TABLE alembic_version (number INTEGER)",
    ],
)
def test_a_database_of_somebody_else_is_one_line(tmp_path: Path, statements: str) -> None:
    with closing(sqlite3.connect(tmp_path / "other.sqlite3")) as other:
        other.executescript(statements)
    contents = relisted([("server.sqlite3", (tmp_path / "other.sqlite3").read_bytes())])
    bad = write(tmp_path / "bad.tar", contents)
    done = command("restore", str(bad), "--folder", str(tmp_path / "new"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert "no server's" in done.stderr
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["lock"]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_a_file_that_was_cut_off_is_refused(saved: Path, tmp_path: Path, share: float) -> None:
    data = saved.read_bytes()
    (tmp_path / "cut.tar").write_bytes(data[: int(len(data) * share)])
    with pytest.raises(InputError, match=r"cut off|no backup"):
        restore(tmp_path / "cut.tar", tmp_path / "new")


def test_an_open_folder_or_one_with_something_in_it_is_refused(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thing").touch()
    with pytest.raises(InputError, match="not empty"):
        restore(saved, tmp_path / "full")
    with claimed(tmp_path / "used"), pytest.raises(InputError, match="another server"):
        restore(saved, tmp_path / "used")


def test_a_restore_that_was_killed_can_be_repeated(saved: Path, tmp_path: Path) -> None:
    """Between its two last steps: the blobs are in place, the database is not."""
    script = """
import os, sys
from pathlib import Path
from traceanalyzer.server import restore

replace = Path.replace
def kill(self, target):
    if Path(target).parent == Path(sys.argv[2]) and self.name == "server.sqlite3":
        os.kill(os.getpid(), 9)
    return replace(self, target)
Path.replace = kill
restore.restore(Path(sys.argv[1]), Path(sys.argv[2]))
"""
    folder = tmp_path / "new"
    words = [sys.executable, "-c", script, str(saved), str(folder)]
    assert subprocess.run(words, timeout=60, check=False).returncode == -9
    assert (folder / "blobs").is_dir() and not (folder / "server.sqlite3").exists()
    assert restore(saved, folder).traces == 3


def test_the_commands(stored: tuple[Settings, list[bytes]], tmp_path: Path) -> None:
    folder = str(stored[0].folder)
    first = command("backup", str(tmp_path / "b.tar"), "--folder", folder)
    assert (first.returncode, first.stdout) == (0, "") and "3 traces" in first.stderr
    again = command("backup", str(tmp_path / "b.tar"), "--folder", folder)
    assert again.returncode == 2 and "exists" in again.stderr and again.stderr.count("\n") == 1
    forced = command("backup", str(tmp_path / "b.tar"), "--folder", folder, "--force", "--quiet")
    assert (forced.returncode, forced.stderr) == (0, "")
    back = command("restore", str(tmp_path / "b.tar"), "--folder", str(tmp_path / "new"))
    assert back.returncode == 0 and "3 traces" in back.stderr
    none = command("backup", str(tmp_path / "c.tar"), "--folder", str(tmp_path / "nowhere"))
    assert none.returncode == 2 and "no server's database" in none.stderr and none.stderr.count("\n") == 1


def test_only_sqlite_is_copied(tmp_path: Path) -> None:
    settings = Settings(folder=tmp_path, database_url="postgresql://somewhere/db")
    with pytest.raises(InputError, match="SQLite"):
        backup(settings, tmp_path / "b.tar")


def test_a_database_that_is_being_written_to_is_copied_whole(
    stored: tuple[Settings, list[bytes]], tmp_path: Path
) -> None:
    """A writer in the middle of a transaction: what it has not committed is not in the copy."""
    settings, _ = stored
    writer = sqlite3.connect(settings.folder / "server.sqlite3", isolation_level=None)
    try:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE traces SET model = 'half done'")
        backup(settings, tmp_path / "b.tar")
    finally:
        writer.rollback()
        writer.close()
    database = dict(members(tmp_path / "b.tar"))["server.sqlite3"]
    assert b"half done" not in database
    assert (tmp_path / "b.tar").stat().st_size > len(database)

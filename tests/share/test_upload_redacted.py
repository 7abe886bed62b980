"""What leaves the machine is the redacted copy and labels that say no more; a dry run shows it and sends nothing."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.share.serving import Scripted, serving
from tests.share.test_upload import SAMPLE, _alone, left, one_error, small, upload
from traceanalyzer.__main__ import main

__all__ = ["_alone"]  # the fixture

PLANTED = {
    "token": f"ghp_{'planted':x<36}",
    "host": "gpu-node-17.corp.example.com",
    "home": "/home/alice.miller/secret-project",
    "mail": "alice.miller@example.com",
}


@pytest.fixture
def server() -> Iterator[Scripted]:
    with serving() as running:
        yield running


def planted(path: Path, block: dict[str, Any] | None = None) -> Path:
    """The sample with secrets where recorders leave them."""
    trace = json.loads(gzip.decompress(SAMPLE.read_bytes()))
    trace |= {
        "host_name": PLANTED["host"],
        "traceName": f"{PLANTED['home']}/trace.json",
        "env": {"GITHUB_TOKEN": PLANTED["token"], "MAIL": PLANTED["mail"]},
    }
    if block is not None:
        trace = {"traceanalyzer": block, **trace}
    event = next(event for event in trace["traceEvents"] if event["ph"] == "X")
    event["args"] |= {"file": f"{PLANTED['home']}/run.py", "by": PLANTED["mail"], "key": PLANTED["token"]}
    path.write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    return path


def sent_text(server: Scripted) -> str:
    """Everything that arrived, decompressed."""
    requests = [f"{seen.path} {seen.labels} {seen.headers}" for seen in server.seen]
    return "".join(gzip.decompress(body).decode() for body in server.stored.values()) + "".join(requests)


@pytest.mark.parametrize("level", ["default", "strict"])
def test_what_is_planted_does_not_leave(
    server: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str], level: str
) -> None:
    trace = planted(tmp_path / f"{PLANTED['host']}_4711.1700000000000000000.pt.trace.json.gz")
    before = trace.read_bytes()
    assert upload(server, trace, "--redact", level) == 0
    text = sent_text(server)
    assert "aten::" in text
    for secret in (*PLANTED.values(), "gpu-node-17", "alice", "secret-project"):
        assert secret not in text, secret
    state = (tmp_path / "state" / "traceanalyzer" / "sent.sqlite3").read_bytes()
    assert PLANTED["token"].encode() not in state
    shown = capsys.readouterr()
    assert f"redacted ({level}): " in shown.err
    assert "credentials" in shown.err
    assert trace.read_bytes() == before
    assert left(tmp_path) == []


def test_unredacted_is_said(server: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = planted(tmp_path / "a\u202eb\\c.json.gz")
    assert upload(server, trace, "--redact", "none") == 0
    assert PLANTED["token"] in sent_text(server)
    assert "not redacted" in capsys.readouterr().err
    assert server.puts[0].labels["name"] == "a?b?c.json.gz"


def test_labels_come_from_the_trace_and_from_the_user(server: Scripted, tmp_path: Path) -> None:
    block = {
        "schema": 1,
        "model": {"name": "tiny-llama", "layers": 2},
        "window": {"engine": "vllm", "rank": 3},
        "sampling": {"weight_s": 61.25},
    }
    trace = planted(tmp_path / "a.json.gz", block)
    assert upload(server, trace, "-q") == 0
    labels = server.puts[0].labels
    assert labels["model"] == "tiny-llama"
    assert labels["engine"] == "vllm"
    assert labels["weight_s"] == "61.25"
    assert "rank" not in labels
    assert upload(server, trace, "-q", "--label", "model=our-name", "--state", tmp_path / "other.sqlite3") == 0
    assert (server.puts[1].labels, server.puts[1].body) == ({"model": "our-name"}, b"")
    trace = planted(tmp_path / "b.json.gz", {**block, "window": {"rank": 0}})
    assert upload(server, trace, "-q", "--label", "model=our-name", "--label", "host=rack 7") == 0
    labels = server.puts[2].labels
    assert labels["model"] == "our-name"
    assert labels["host"] == "rack 7"
    assert "engine" not in labels


def test_the_copy_is_the_same_every_time(server: Scripted, tmp_path: Path) -> None:
    trace = planted(tmp_path / "a.json.gz")
    for number in range(3):
        assert upload(server, trace, "-q", "--state", tmp_path / f"{number}.sqlite3") == 0
    assert len(server.puts) == 1


def test_a_dry_run_shows_everything_and_contacts_nobody(
    server: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = planted(tmp_path / f"{PLANTED['host']}_4711.1700000000000000000.pt.trace.json.gz")
    for words in ([], ["--to", server.url]):
        assert main(["upload", "--dry-run", str(trace), *words]) == 0
        shown = capsys.readouterr()
        first, *rest = shown.out.splitlines()
        assert first.startswith(f"{trace.name} would be sent as trace-")
        assert any(line.strip().startswith("credentials: ") for line in rest)
        assert PLANTED["token"] in shown.out  # it is shown to whoever can read it anyway
    assert server.seen == []
    assert not (tmp_path / "state").exists()
    assert main(["upload", "--dry-run", str(trace), "--redact", "none"]) == 0
    assert "nothing changed" in capsys.readouterr().out


def test_a_dry_run_of_what_is_no_trace_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text("Dear diary")
    assert main(["upload", "--dry-run", str(tmp_path / "a.json")]) == 2
    assert "a.json" in one_error(capsys)


def test_a_folder_is_its_traces(server: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "runs"
    small(folder, "b.json")
    small(folder, "a.json", "a")
    (folder / "config.json").write_text('{"model": "x"}')
    (folder / "log.txt").write_text("x")
    (folder / "link.json").symlink_to(small(tmp_path, "outside.json", "outside"))
    assert upload(server, folder, folder / "a.json", "-q") == 0
    assert len(server.stored) == 2
    assert capsys.readouterr().out.count("\n") == 2


def test_what_is_no_trace_is_not_sent_at_any_level(
    server: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, data in {
        "pickle": b"\x80\x04\x95abc",
        "zip": b"PK\x03\x04" + b"\0" * 600,
        "key.json": b'{"private_key": "x"}',
        "passwd": Path("/etc/passwd").read_bytes(),
        "readme.md": (ROOT / "README.md").read_bytes(),
        "empty": b"",
    }.items():
        (tmp_path / name).write_bytes(data)
        for level in ("none", "default", "strict"):
            assert upload(server, tmp_path / name, "--redact", level) == 2
            assert name in one_error(capsys)
    assert server.seen == []

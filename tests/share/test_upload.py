"""What a single `upload` sends, tells and refuses, against a server that does what each test says."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import stamina

from tests.conftest import ROOT
from tests.share.serving import Answer, Scripted, free_port, serving
from traceanalyzer.__main__ import main

SAMPLE = ROOT / "samples" / "tiny-llama-cpu-batch4.json.gz"
TOKEN = "ta_0123456789ab_" + "s" * 43


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("TRACEANALYZER_TOKEN", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    stamina.set_testing(True, attempts=6)  # as many tries as ever, without the waits
    yield
    stamina.set_testing(False)


@pytest.fixture
def server() -> Iterator[Scripted]:
    with serving() as running:
        yield running


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return small(tmp_path, "run.json", " ")


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    return Path(shutil.copy(SAMPLE, tmp_path / "run.json.gz"))


def small(folder: Path, name: str, mark: str = "") -> Path:
    """A trace of one event; `mark` makes it another one."""
    folder.mkdir(parents=True, exist_ok=True)
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1 + len(mark), "dur": 5}
    path = folder / name
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": [event]}) + " " * len(mark))
    return path


def upload(server: Scripted, *words: str | Path) -> int:
    return main(["upload", *map(str, words), "--to", server.url])


def one_error(capsys: pytest.CaptureFixture[str]) -> str:
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("traceanalyzer: ")
    assert shown.err.count("\n") == 1
    return shown.err


def left(tmp_path: Path) -> list[str]:
    """What lies in the state folder beside the state."""
    folder = tmp_path / "state" / "traceanalyzer"
    return [path.name for path in folder.iterdir() if not path.name.startswith("sent.sqlite3")]


def test_one_trace_is_sent_under_the_hash_of_what_is_sent(
    server: Scripted, sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert upload(server, sample, "--label", "revision=abc123", "--label", "environment=prod") == 0
    (body,) = server.stored.values()
    (seen,) = server.puts
    assert seen.sha256 == hashlib.sha256(body).hexdigest()
    assert seen.headers["content-length"] == str(len(body))
    assert "transfer-encoding" not in seen.headers
    assert "authorization" not in seen.headers
    assert seen.labels["revision"] == "abc123"
    assert seen.labels["environment"] == "prod"
    assert seen.labels["name"].endswith(".json.gz")
    assert [one.method for one in server.seen] == ["HEAD", "PUT"]
    shown = capsys.readouterr()
    assert shown.out == f"{server.url}/t/{seen.sha256}\n"
    assert "run.json.gz" in shown.err
    assert left(tmp_path) == []
    assert sample.read_bytes() == SAMPLE.read_bytes()


def test_what_was_sent_is_not_sent_again(server: Scripted, trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert upload(server, trace) == 0
    first = capsys.readouterr().out
    before = len(server.seen)
    assert upload(server, trace, "-q") == 0
    assert [seen.method for seen in server.seen[before:]] == ["HEAD"]
    assert capsys.readouterr() == (first, "")
    before = len(server.seen)
    # Without the memory of it the server is asked, and has it.
    assert upload(server, trace, "--state", trace.with_name("other.sqlite3")) == 0
    assert [seen.method for seen in server.seen[before:]] == ["HEAD"]
    shown = capsys.readouterr()
    assert shown.out == first
    assert "already" in shown.err
    # Another level, another server and another content are other things to send.
    trace.write_bytes(small(trace.parent, "x.json").read_bytes())
    assert upload(server, trace) == 0
    assert len(server.whole_puts) == 2


def test_other_labels_reach_a_trace_that_the_server_has(server: Scripted, trace: Path) -> None:
    assert upload(server, trace, "-q") == 0
    for words in (["--state", trace.with_name("other.sqlite3")], []):  # the server knows it; the state knows it
        before = len(server.seen)
        assert upload(server, trace, "-q", "--label", "environment=prod", *words) == 0
        assert [(seen.method, len(seen.body)) for seen in server.seen[before:]] == [("HEAD", 0), ("PUT", 0)]
        assert server.seen[-1].labels == {"environment": "prod"}


def test_what_the_server_has_deleted_since_is_sent_again(server: Scripted, trace: Path) -> None:
    assert upload(server, trace, "-q") == 0
    server.stored.clear()
    assert upload(server, trace, "-q") == 0
    assert len(server.stored) == 1 and len(server.whole_puts) == 2


def test_the_state_is_for_its_owner_only(server: Scripted, trace: Path, tmp_path: Path) -> None:
    assert upload(server, trace, "-q") == 0
    folder = tmp_path / "state" / "traceanalyzer"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_the_token_comes_from_a_file_or_the_environment(
    server: Scripted, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.token = TOKEN
    assert upload(server, trace) == 2
    assert "wants a token" in one_error(capsys)
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    assert upload(server, trace, "-q", "--token-file", file) == 0
    monkeypatch.setenv("TRACEANALYZER_TOKEN", TOKEN)
    assert upload(server, small(tmp_path, "b.json"), "-q") == 0
    file.write_text(TOKEN[:-1] + "x")
    assert upload(server, small(tmp_path, "c.json", "c"), "-q", "--token-file", file) == 2
    shown = capsys.readouterr()
    assert "does not accept the token" in shown.err
    assert "ssss" not in shown.err
    assert len(server.stored) == 2
    assert not [path for path in (tmp_path / "state").rglob("*") if path.is_file() and b"ssss" in path.read_bytes()]


@pytest.mark.parametrize(
    "words",
    [
        ["x.json", "--to", "http://localhost:1", "--token", TOKEN],
        ["x.json", "--to", f"http://localhost:1/?token={TOKEN}"],
        ["x.json", "--to", f"https://user:{TOKEN}@host"],
        ["x.json", "--to", "https://user:word@host"],
        ["x.json", "--to", "https://user@host"],
        ["x.json", "--to", "https://host/?a=b"],
        ["x.json", "--to", "https://host/#t"],
        ["x.json", "--to", "https://host", "--label", f"model={TOKEN}"],
        ["x.json", "--to", "https://host", "--token-file", TOKEN],
        ["x.json", "--to", "https://host", "--proxy", "http://user:word@proxy:3128"],
        ["x.json", "--to", "https://host", "--proxy", "proxy:3128"],
        ["x.json", "--to", "https://host", "--proxy", "socks5://proxy:3128"],
        ["x.json", "--to", "host"],
        ["x.json", "--to", "ftp://host"],
        ["x.json", "--to", "https://"],
        ["x.json", "--to", "https://host:port"],
        ["x.json", "--to", "https://host:0"],
        ["x.json", "--to", "https://ho st"],
        ["x.json", "--to", "https://host/a b"],
        ["x.json", "--to", "https://[::1"],
        ["x.json"],
        ["x.json", "--to", ""],
        ["x.json", "--to", "https://host", "--redact", "some"],
        ["x.json", "--to", "https://host", "--label", "model"],
        ["x.json", "--to", "https://host", "--label", "model="],
        ["x.json", "--to", "https://host", "--label", "colour=red"],
        ["x.json", "--to", "https://host", "--label", "model=a\nb"],
        ["x.json", "--to", "https://host", "--label", "model=\u202egpj"],
        ["x.json", "--to", "https://host", "--label", "model=a", "--label", "model=b"],
        ["x.json", "--to", "https://host", "--label", "model=" + "x" * 201],
        ["x.json", "--to", "https://host", "--limit", "fast"],
        ["x.json", "--to", "https://host", "--limit", "0"],
        ["x.json", "--to", "https://host", "--limit", "2kB/s"],
        ["x.json", "--to", "https://host", "--ca-file", "missing.pem"],
        ["x.json", "--to", "https://host", "--token-file", "missing"],
        ["x.json", "--to", "https://host", "--state", "/dev/null/x"],
        ["missing.json", "--to", "https://host"],
        [".", "--to", "https://host"],
        ["", "--to", "https://host"],
        ["x\0", "--to", "https://host"],
        [],
    ],
    ids=lambda words: " ".join(words).replace(TOKEN, "TOKEN").encode("unicode_escape").decode()[:60],
)
def test_bad_requests_are_one_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small(tmp_path, "x.json")
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty if words[:1] == ["."] else tmp_path)
    assert main(["upload", *words]) == 2
    said = one_error(capsys)
    assert "s" * 43 not in said
    assert "word@" not in said


def test_a_token_does_not_travel_where_others_can_read_it(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACEANALYZER_TOKEN", TOKEN)
    assert main(["upload", str(trace), "--to", "http://traces.invalid"]) == 2
    assert "--insecure-http" in one_error(capsys)
    monkeypatch.setenv("TRACEANALYZER_TOKEN", "two words")
    assert main(["upload", str(trace), "--to", "http://localhost:1"]) == 2
    said = one_error(capsys)
    assert "no token" in said
    assert "words" not in said


@pytest.mark.parametrize(("status", "text"), [(413, "too large"), (415, "such files"), (422, "no usable trace")])
def test_what_is_refused_for_good_is_not_sent_again(
    server: Scripted, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int, text: str
) -> None:
    server.script.append(Answer(status, body=b'{"detail": "more than\\n\\u001b[31m 1 byte"}'))
    assert upload(server, trace) == 2
    said = one_error(capsys)
    assert text in said
    assert "run.json" in said
    assert "\x1b" not in said
    before = len(server.seen)
    assert upload(server, trace) == 2
    assert "earlier" in one_error(capsys)
    assert len(server.seen) == before
    assert left(tmp_path) == []
    os.utime(trace, (1, 1))
    assert upload(server, trace, "-q") == 0


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 507])
def test_what_may_pass_is_tried_again(server: Scripted, trace: Path, status: int) -> None:
    server.script += [Answer(status, {"Retry-After": "1"}), Answer(status, {"Retry-After": "nonsense"})]
    assert upload(server, trace, "-q") == 0
    assert len(server.stored) == 1
    assert [seen.method for seen in server.seen] == ["HEAD", "PUT"] * 3


def test_it_is_tried_so_often_and_no_more(
    server: Scripted, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.always = lambda seen: Answer(503) if seen.method == "PUT" else None
    assert upload(server, trace) == 2
    assert len(server.puts) == 6
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("trying again") == 5
    assert shown.err.splitlines()[-1].startswith("traceanalyzer: ")
    assert left(tmp_path) == []
    server.always = lambda seen: None
    assert upload(server, trace, "-q") == 0


def test_nobody_is_kept_waiting_for_an_hour(server: Scripted, trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.script.append(Answer(429, {"Retry-After": "3600"}))
    assert upload(server, trace) == 2
    assert "429" in one_error(capsys)
    assert len(server.puts) == 1


@pytest.mark.parametrize("drop_after", [0, 1000, 100_000])
def test_a_dropped_line_is_tried_again(server: Scripted, sample: Path, drop_after: int) -> None:
    server.script += [Answer(drop_after=drop_after), Answer(drop_after=drop_after)]
    assert upload(server, sample, "-q") == 0
    assert len(server.whole_puts) == 1
    assert len(server.stored) == 1


def test_an_answer_that_comes_too_late_is_asked_for(
    server: Scripted, trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("traceanalyzer.share.transfer.ANSWER_S", 0.3)
    server.script.append(Answer(is_right=True, late_s=1.0))
    assert upload(server, trace) == 0
    shown = capsys.readouterr()
    assert "does not answer in time" in shown.err
    assert shown.out == f"{server.url}/t/{server.puts[0].sha256}\n"
    assert [seen.method for seen in server.seen] == ["HEAD", "PUT", "HEAD"]


def test_an_answer_that_trickles_is_not_read_for_ever(
    server: Scripted, trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("traceanalyzer.share.transfer.ANSWER_S", 0.5)
    server.script.append(Answer(201, body=b" " * 1000, drip_s=0.1))
    assert upload(server, trace) == 0
    assert "does not answer in time" in capsys.readouterr().err
    assert len(server.puts) == 2


def test_it_waits_as_long_as_the_server_says(server: Scripted, trace: Path) -> None:
    stamina.set_testing(False)
    server.script.append(Answer(503, {"Retry-After": "2"}))
    assert upload(server, trace, "-q") == 0
    assert server.puts[1].at - server.puts[0].at >= 2.0


def test_a_name_may_hold_any_bytes(server: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = os.fsencode(tmp_path) + b"/\xff\xfe\x1b[31m.json"
    Path(os.fsdecode(odd)).write_bytes(small(tmp_path, "x.json").read_bytes())
    for _ in range(2):
        assert upload(server, os.fsdecode(odd)) == 0
    assert [seen.method for seen in server.seen] == ["HEAD", "PUT", "HEAD"]
    assert "\x1b" not in capsys.readouterr().err


LIES = [
    Answer(200, body=b"<html>Please accept our terms</html>"),
    Answer(201, body=b'{"sha256": "' + b"0" * 64 + b'"}'),
    Answer(200, body=b'{"state": "queued"}'),
    Answer(200, body=b"[" * 60_000),
    Answer(200, body=b"x" * 1_000_000),
    Answer(204),
    Answer(202, body=b"{}"),
]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: f"{lie.status} {lie.body[:20]!r}")
def test_a_yes_that_names_no_trace_is_none(
    server: Scripted, trace: Path, capsys: pytest.CaptureFixture[str], lie: Answer
) -> None:
    server.script.append(lie)
    assert upload(server, trace) == 2
    assert "not as a traceanalyzer server" in one_error(capsys)
    assert upload(server, trace, "-q") == 0
    assert len(server.stored) == 1


def test_a_portal_that_says_yes_to_everything_has_nothing(
    server: Scripted, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.always = lambda seen: Answer(200, body=b"welcome")
    assert upload(server, trace) == 2
    assert "not as a traceanalyzer server" in one_error(capsys)
    assert server.puts == []


def test_redirects_are_not_followed(server: Scripted, trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as other:
        for status in (301, 302, 307, 308):
            server.script.append(Answer(status, {"Location": f"{other.url}/api/v1/traces/x"}))
            assert upload(server, trace) == 2
            assert f"redirects to {other.url}" in one_error(capsys)
        assert other.seen == []


@pytest.mark.parametrize(
    ("status", "text"), [(401, "token"), (403, "scope"), (404, "no traceanalyzer server"), (405, "no traceanalyzer")]
)
def test_what_concerns_every_trace_ends_it(
    server: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int, text: str
) -> None:
    folder = tmp_path / "run"
    for name in ("a", "bb", "ccc"):
        small(folder, f"{name}.json", name)
    server.always = lambda seen: Answer(status, body=b"") if seen.method == "PUT" else None
    assert upload(server, folder) == 2
    shown = capsys.readouterr()
    assert text in shown.err
    assert shown.err.endswith("traceanalyzer: 3 of 3 traces were not sent\n")
    assert len(server.puts) == 1


def test_one_bad_file_does_not_hold_up_the_others(
    server: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [small(tmp_path, f"{name}.json", name) for name in ("a", "bb", "ccc")]
    (tmp_path / "diary.txt").write_text("Dear diary")
    server.script += [Answer(422), Answer(400, body=b'{"detail": "no such label"}')]
    assert upload(server, paths[0], paths[1], tmp_path / "diary.txt", paths[2]) == 2
    shown = capsys.readouterr()
    assert shown.out.count("\n") == 1
    lines = [line for line in shown.err.splitlines() if line.startswith("traceanalyzer: ")]
    assert ["a.json" in lines[0], "bb.json" in lines[1], "diary.txt" in lines[2]] == [True] * 3
    assert lines[-1] == "traceanalyzer: 3 of 4 traces were not sent"
    # What the server may take another time is sent then.
    assert upload(server, *paths, "-q") == 2
    assert len(server.stored) == 2


def test_a_server_that_is_away_is_not_asked_for_every_trace(
    server: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    for name in ("a", "bb", "ccc", "dddd"):
        small(folder, f"{name}.json", name)
    server.always = lambda seen: Answer(503)
    assert upload(server, folder) == 2
    assert len(server.seen) == 2 * 6
    assert capsys.readouterr().err.endswith("traceanalyzer: 4 of 4 traces were not sent\n")


def test_a_server_that_is_away_is_said_in_one_line(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["upload", str(trace), "--to", f"http://127.0.0.1:{free_port()}"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "cannot be reached" in last
    assert last.startswith("traceanalyzer: ")
    assert left(tmp_path) == []


def test_a_damaged_or_foreign_state_is_one_line(
    server: Scripted, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "other.sqlite3"
    place.write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    assert upload(server, trace, "--state", place) == 2
    assert "other.sqlite3" in one_error(capsys)
    assert server.seen == []


def test_without_a_home_it_is_sent_and_not_remembered(
    server: Scripted, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert upload(server, trace) == 0
    assert "not be remembered" in capsys.readouterr().err
    assert len(server.stored) == 1
    assert main(["upload", "--watch", str(tmp_path), "--to", server.url]) == 2
    assert "--state" in one_error(capsys)

"""Session cookies: what is signed is read back, what is not is not, and age and the token's hash end one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from traceanalyzer.server.sessions import MAX_AGE_S, Sessions

SECRET = b"k" * 32
HASH = "ab" * 32


def test_a_session_is_read_back_and_holds_no_hash_in_full() -> None:
    cookie = Sessions(SECRET).make("0123456789ab", HASH)
    assert HASH not in cookie
    session = Sessions(SECRET).read(cookie)
    assert session is not None
    assert session.token_id == "0123456789ab"
    assert session.matches(HASH)
    assert not session.matches("cd" * 32)


@pytest.mark.parametrize("cookie", ["", ".", "a.b.c", "ünsigned", "0123456789ab:" + HASH])
def test_what_nobody_signed_is_no_session(cookie: str) -> None:
    assert Sessions(SECRET).read(cookie) is None


def test_another_secret_or_a_changed_byte_ends_it() -> None:
    cookie = Sessions(SECRET).make("0123456789ab", HASH)
    assert Sessions(b"other" * 8).read(cookie) is None
    assert Sessions(SECRET).read("1" + cookie[1:]) is None


def test_a_session_ends_after_twelve_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    cookie = Sessions(SECRET).make("0123456789ab", HASH)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + MAX_AGE_S - 5)
    assert Sessions(SECRET).read(cookie) is not None
    monkeypatch.setattr(time, "time", lambda: now + MAX_AGE_S + 5)
    assert Sessions(SECRET).read(cookie) is None


def test_the_secret_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    cookie = Sessions.open(path).make("0123456789ab", HASH)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(path.read_bytes()) == 32
    assert Sessions.open(path).read(cookie) is not None
    assert [entry.name for entry in tmp_path.iterdir()] == ["secret"]

"""Tokens, share links and the audit log: what opens, what no longer does, and what the command line says."""

from __future__ import annotations

import hashlib
import hmac
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.server.asking import secret_of
from traceanalyzer.__main__ import main
from traceanalyzer.errors import InputError
from traceanalyzer.server.access import Caller
from traceanalyzer.server.labels import Labels
from traceanalyzer.server.services import Services
from traceanalyzer.server.settings import Settings
from traceanalyzer.server.tokens import SCOPES, usable

SHA = "ab" * 32
NOW = 1_800_000_000_000
DAY = 86_400_000


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    opened = Services.open(Settings(folder=tmp_path))
    opened.traces.add(SHA, 1, 1, Labels(), None, NOW)
    yield opened
    opened.close()


def everything(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())


def test_a_token_opens_and_only_its_hash_is_kept(services: Services, tmp_path: Path) -> None:
    token, text = services.tokens.make("ci", ["read", "upload"], now=NOW)
    assert re.fullmatch(r"ta_[0-9a-f]{12}_[A-Za-z0-9_-]{43}", text)
    assert token.scopes == "upload,read"
    found = services.tokens.check(text, NOW)
    assert found is not None
    assert (found.id, found.name) == (token.id, "ci")
    secret = secret_of(text)
    assert token.hash == hashlib.sha256(secret.encode()).hexdigest()
    assert secret.encode() not in everything(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-1] + ("A" if text[-1] != "A" else "B"),
        lambda text: text[:3] + ("0" * 12 if text[3:15] != "0" * 12 else "1" * 12) + text[15:],
        lambda text: text.upper(),
        lambda text: text + "A",
        lambda text: text + "\n",
        lambda text: " " + text,
        lambda text: text[3:],
        lambda text: "",
        lambda text: "ta__",
        lambda text: text[:16],
        lambda text: text.replace("ta_", "tb_"),
        lambda text: text[:-1] + "\N{FULLWIDTH LATIN CAPITAL LETTER A}",
        lambda text: "ta_" + "%" * 12 + text[15:],
        lambda text: "x" * 1_000_000,
    ],
)
def test_what_is_not_the_token_does_not_open(services: Services, change: Any) -> None:
    _, text = services.tokens.make("ci", ["read"], now=NOW)
    assert services.tokens.check(change(text), NOW) is None


def test_the_secret_is_compared_in_constant_time_also_for_an_unknown_id(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[int, int]] = []
    really = hmac.compare_digest

    def compare(one: str, other: str) -> bool:
        compared.append((len(one), len(other)))
        return really(one, other)

    _, text = services.tokens.make("ci", ["read"], now=NOW)
    monkeypatch.setattr(hmac, "compare_digest", compare)
    services.tokens.check(text, NOW)
    services.tokens.check("ta_" + "0" * 12 + text[15:], NOW)
    services.tokens.check("nonsense", NOW)
    assert compared == [(64, 64)] * 3


def test_a_revoked_token_ends_at_once_and_whatever_the_clock_says(services: Services) -> None:
    token, text = services.tokens.make("ci", ["read"], now=NOW)
    assert services.tokens.revoke(token.id, NOW + DAY)
    for now in (NOW - DAY, NOW, NOW + 2 * DAY):
        assert services.tokens.check(text, now) is None
    assert not services.tokens.revoke(token.id)
    assert not services.tokens.revoke("0" * 12)
    assert [row.revoked_at for row in services.tokens.list()] == [NOW + DAY]


def test_a_token_expires_to_the_millisecond(services: Services) -> None:
    token, text = services.tokens.make("ci", ["read"], expires_s=60, now=NOW)
    assert token.expires_at == NOW + 60_000
    assert services.tokens.check(text, NOW + 59_999) is not None
    assert services.tokens.check(text, NOW + 60_000) is None
    assert usable(token, NOW + 59_999)
    assert not usable(token, NOW + 60_000)


def test_the_server_stays_guarded_when_every_token_has_ended(services: Services) -> None:
    assert not services.tokens.any_active()
    one, _ = services.tokens.make("a", ["read"], expires_s=1, now=NOW - DAY)
    other, _ = services.tokens.make("b", ["read"], now=NOW)
    services.tokens.revoke(other.id)
    assert not usable(one, NOW)
    assert services.tokens.any_active()
    again = Services.open(services.settings)
    assert again.tokens.any_active()
    again.close()


def test_scopes(services: Services) -> None:
    reader, _ = services.tokens.make("r", ["read"])
    admin, _ = services.tokens.make("a", ["admin"])
    assert [Caller.of(reader).may(scope) for scope in SCOPES] == [False, True, False, False]
    assert [Caller.of(admin).may(scope) for scope in SCOPES] == [True] * 4


@pytest.mark.parametrize(
    ("name", "scopes", "expires"),
    [
        ("", ["read"], None),
        ("  ", ["read"], None),
        ("a\nb", ["read"], None),
        ("a\N{RIGHT-TO-LEFT OVERRIDE}b", ["read"], None),
        ("x" * 101, ["read"], None),
        ("a", [], None),
        ("a", ["root"], None),
        ("a", ["read", "read,admin"], None),
        ("a", ["read"], 0.0),
        ("a", ["read"], -1.0),
        ("a", ["read"], float("nan")),
        ("a", ["read"], float("inf")),
    ],
)
def test_a_token_that_cannot_be_is_not_made(
    services: Services, name: str, scopes: list[str], expires: float | None
) -> None:
    with pytest.raises(InputError):
        services.tokens.make(name, scopes, expires)
    assert not services.tokens.any_active()


def test_the_last_use_is_noted_once_a_minute(services: Services) -> None:
    token, text = services.tokens.make("ci", ["read"], now=NOW)

    def used() -> int | None:
        row = services.tokens.get(token.id)
        assert row is not None
        return row.last_used_at

    assert used() is None
    services.tokens.check(text, NOW)
    services.tokens.check(text, NOW + 59_000)
    assert used() == NOW
    services.tokens.check(text, NOW + 60_000)
    assert used() == NOW + 60_000
    # The clock was set back: noted again, not frozen until it catches up.
    services.tokens.check(text, NOW - DAY)
    assert used() == NOW - DAY


def test_a_link_opens_until_it_is_revoked_or_expires(services: Services, tmp_path: Path) -> None:
    link, secret = services.links.make(SHA, "me", expires_s=60, now=NOW)
    assert len(secret) == 43  # 32 random bytes in base64
    assert secret.encode() not in everything(tmp_path)
    opened = services.links.open(secret, NOW + 59_999)
    assert opened is not None
    assert (opened.id, opened.sha256) == (link.id, SHA)
    assert services.links.open(secret, NOW + 60_000) is None
    endless, other = services.links.make(SHA, None, now=NOW)
    assert services.links.revoke(endless.id, NOW + 1)
    assert not services.links.revoke(endless.id, NOW + 2)
    for now in (NOW - DAY, NOW, NOW + DAY):
        assert services.links.open(other, now) is None
    assert services.links.known(secret)
    assert services.links.known(other)
    assert [row.id for row in services.links.of(SHA)] == [row.id for row in sorted([link, endless], key=lambda r: r.id)]


@pytest.mark.parametrize("secret", ["", "A" * 43, "A" * 42, "A" * 44, "%" * 43, "A" * 42 + "\n", "x" * 1_000_000])
def test_what_is_no_link_opens_nothing(services: Services, secret: str) -> None:
    services.links.make(SHA, None)
    assert services.links.open(secret) is None
    assert not services.links.known(secret)


def test_opening_is_counted_where_it_is_asked_for(services: Services) -> None:
    link, secret = services.links.make(SHA, "me", now=NOW)
    services.links.open(secret, NOW + 1)
    services.links.open(secret, NOW + 2)
    services.links.open(secret, NOW + 3, counted=False)
    row = services.links.get(link.id)
    assert row is not None
    assert (row.opened, row.last_opened_at) == (2, NOW + 2)


def test_links_go_with_their_trace_and_need_one(services: Services) -> None:
    _, secret = services.links.make(SHA, "me")
    with pytest.raises(InputError):
        services.links.make("cd" * 32, "me")
    with pytest.raises(InputError):
        services.links.make(SHA, "me", expires_s=0)
    assert services.traces.delete(SHA)
    assert services.links.open(secret) is None
    assert services.links.of(SHA) == []


def test_the_audit_log_keeps_lines_that_can_be_read(services: Services) -> None:
    services.audit.note("me", "delete", SHA, "first\nsecond\x1b[31m\N{RIGHT-TO-LEFT OVERRIDE}" + "x" * 10_000)
    services.audit.note("you", "share", "other")
    newest, oldest = services.audit.recent()
    assert (newest.actor, oldest.actor) == ("you", "me")
    assert oldest.detail.isprintable()
    assert len(oldest.detail) <= 1000
    assert [row.action for row in services.audit.recent(subject=SHA)] == ["delete"]


@dataclass
class Said:
    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Said]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: str) -> Said:
        code = main(["token", *arguments])
        return Said(code, *capsys.readouterr())

    return run


def test_the_command_makes_lists_and_revokes(tmp_path: Path, cli: Command) -> None:
    folder = str(tmp_path / "server")
    made = cli("create", "ci machine", "--scope", "upload,read", "--expires", "90d", "--folder", folder)
    assert made.returncode == 0, made.stderr
    assert re.fullmatch(r"ta_[0-9a-f]{12}_[A-Za-z0-9_-]{43}\n", made.stdout)
    identity, secret = made.stdout.strip().split("_", 2)[1:]
    assert identity in made.stderr
    assert secret not in made.stderr
    listed = cli("list", "--folder", folder)
    row = next(line for line in listed.stdout.splitlines() if identity in line)
    assert "ci machine" in row
    assert row.endswith("active")
    assert secret not in listed.stdout
    assert cli("revoke", identity, "--folder", folder).returncode == 0
    assert "revoked" in cli("list", "--folder", folder).stdout
    again = cli("revoke", identity, "--folder", folder)
    assert (again.returncode, again.stdout, again.stderr.count("\n")) == (2, "", 1)
    services = Services.open(Settings(folder=tmp_path / "server"))
    assert services.tokens.check(made.stdout.strip()) is None
    assert [row.action for row in services.audit.recent()] == ["token.revoke", "token.create"]
    services.close()
    assert secret.encode() not in everything(tmp_path / "server")


@pytest.mark.parametrize(
    "arguments",
    [
        ["create", "x", "--scope", "root"],
        ["create", "x", "--scope", ""],
        ["create", "x", "--expires", "0d"],
        ["create", "x", "--expires", "soon"],
        ["create", "x", "--expires", "-1d"],
        ["create", "x", "--expires", "999999w"],
        ["create", "a\nb"],
        ["list"],
        ["revoke", "000000000000"],
    ],
)
def test_the_command_refuses_in_one_line(tmp_path: Path, cli: Command, arguments: list[str]) -> None:
    done = cli(*arguments, "--folder", str(tmp_path / "server"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr


def test_a_token_that_nobody_could_read_is_no_token(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "traceanalyzer", "token", "create", "x", "--folder", str(tmp_path)],
            stdout=full, stderr=subprocess.PIPE, timeout=60,
        )  # fmt: skip
    assert done.returncode == 2
    connection = sqlite3.connect(tmp_path / "server.sqlite3")
    assert connection.execute("SELECT count(*), count(revoked_at) FROM tokens").fetchone() == (1, 1)
    connection.close()


def test_help_loads_no_database_and_a_missing_extra_is_one_line(tmp_path: Path) -> None:
    code = (
        "import sys; from traceanalyzer.__main__ import main; code = main(['token', 'create', '--help']); "
        "print([n for n in ('sqlalchemy', 'alembic', 'obstore') if n in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "[]\n")
    without = (
        "import importlib.util, sys; find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'sqlalchemy' else find(name, *a)\n"
        "from traceanalyzer.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", without, "token", "create", "x", "--folder", str(tmp_path)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "pip install 'traceanalyzer-llm[server]'" in done.stderr

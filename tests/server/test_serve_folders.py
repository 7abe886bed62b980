"""The server's commands say which folder they mean, and make none where they refuse."""

from __future__ import annotations

import shlex
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from traceanalyzer.__main__ import main
from traceanalyzer.server.backup import backup
from traceanalyzer.server.restore import restore
from traceanalyzer.server.services import Services
from traceanalyzer.server.settings import Settings

Said = tuple[int, str, str]
Command = Callable[..., Said]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*words: str) -> Said:
        return main(list(words)), *capsys.readouterr()

    return run


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A backup of a server with nothing in it."""
    settings = Settings(folder=tmp_path / "elsewhere")
    Services.open(settings).close()
    backup(settings, tmp_path / "saved.tar")
    return tmp_path / "saved.tar"


def test_every_message_names_the_folder(tmp_path: Path, cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "kept here"
    monkeypatch.setenv("TRACEANALYZER_FOLDER", str(folder))
    code, text, told = cli("token", "create", "ci")
    assert code == 0 and str(folder) in told and "folder" not in text
    identity = text.split("_")[1]
    code, text, told = cli("token", "list")
    assert code == 0 and str(folder) in told and str(folder) not in text
    for code, _, told in (cli("token", "revoke", identity), cli("backup", str(tmp_path / "b.tar"))):
        assert code == 0 and str(folder) in told
    for words in (["token", "revoke", identity], ["token", "revoke", "0" * 12]):
        code, _, told = cli(*words)
        assert code == 2 and str(folder) in told
    monkeypatch.setenv("TRACEANALYZER_FOLDER", str(tmp_path / "new one"))
    code, _, told = cli("restore", str(tmp_path / "b.tar"))
    assert code == 0 and str(tmp_path / "new one") in told


def test_a_backup_of_no_server_is_refused_and_makes_nothing(tmp_path: Path, cli: Command) -> None:
    code, _, told = cli("backup", str(tmp_path / "b.tar"), "--folder", str(tmp_path / "nowhere"))
    assert code == 2 and str(tmp_path / "nowhere") in told
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("statements", ["", "CREATE TABLE other (name TEXT)"])
def test_a_database_of_somebody_else_is_no_server(tmp_path: Path, cli: Command, statements: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with closing(sqlite3.connect(folder / "server.sqlite3")) as other:
        other.executescript(f"VACUUM; {statements}")
    code, _, told = cli("backup", str(tmp_path / "b.tar"), "--folder", str(folder))
    assert code == 2 and told.count("\n") == 1 and f"{folder} is no server's" in told
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_backup_that_is_there_is_replaced_by_force_only(tmp_path: Path, saved: Path, cli: Command) -> None:
    words = ("backup", str(saved), "--folder", str(tmp_path / "elsewhere"))
    code, _, told = cli(*words)
    assert (code, told) == (2, f"traceanalyzer: FILE: {saved} exists (--force replaces it)\n")
    assert cli(*words, "--force")[0] == 0


@pytest.mark.parametrize("option", [("--host", "0.0.0.0"), ("--public-url", "https://traces.example.org")])
def test_a_refused_start_makes_no_folder(tmp_path: Path, cli: Command, option: tuple[str, str]) -> None:
    folder = tmp_path / "a server"
    code, _, told = cli("serve", "--folder", str(folder), "--port", "0", *option)
    assert code == 2 and not folder.exists()
    assert f"traceanalyzer token create NAME --folder {shlex.quote(str(folder))}" in told


def test_a_start_without_a_port_leaves_a_folder_that_a_restore_takes(tmp_path: Path, saved: Path, cli: Command) -> None:
    folder = tmp_path / "server"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, _, told = cli("serve", "--folder", str(folder), "--port", str(taken.getsockname()[1]))
    assert code == 2 and "in use" in told
    assert restore(saved, folder).traces == 0

"""The server's address and the token for it: what is refused before anything is sent.

A token stands in a file or in the environment. On the command line every user of the machine could read it, and in an
address it would end up in logs. What could be wrong: only our own tokens are recognised by their shape; another
server's secret in a label would be sent as that label.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from traceanalyzer.errors import InputError
from traceanalyzer.network import TOKEN_START, is_loopback

TOKEN_VARIABLE = "TRACEANALYZER_TOKEN"  # noqa: S105 - the variable's name
KEEP_IT_APART = f"put the token into a file and name it with --token-file, or into {TOKEN_VARIABLE}"
_TOKEN_SHAPE = re.compile(TOKEN_START)
_TOKEN = re.compile(r"[!-~]{1,1000}")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]")
_PATH = re.compile(r"(?:/[A-Za-z0-9._~-]+)*")
_API = "/api/v1"


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server is.

    base: its address without a slash at the end. is_local: whether it is this machine. is_encrypted: whether by TLS.
    """

    base: str
    is_local: bool
    is_encrypted: bool


def address(text: str) -> Address:
    """Read the value of --to.

    Raises:
        InputError: no address of a server, or one with a secret or a query in it.
    """
    parts = _split("--to", text)
    if parts.query or parts.fragment:
        raise InputError("--to: an address ends before ? and #", "give the server's first page, as https://host/")
    path = parts.path.rstrip("/").removesuffix(_API)
    if not _PATH.fullmatch(path):
        raise InputError("--to: the path holds characters that no server's address needs")
    host = _host(parts)
    port = f":{parts.port}" if parts.port else ""
    return Address(f"{parts.scheme}://{host}{port}{path}", is_loopback(host), parts.scheme == "https")


def proxy(text: str) -> str:
    """Read the value of --proxy.

    Raises:
        InputError: no address of a proxy, or one with a password in it.
    """
    parts = _split("--proxy", text)
    return f"{parts.scheme}://{_host(parts)}" + (f":{parts.port}" if parts.port else "")


def _split(option: str, text: str) -> SplitResult:
    refuse_tokens([text])
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InputError(f"{option}: {text!r} is no address") from error
    if "@" in parts.netloc:
        hint = KEEP_IT_APART if option == "--to" else "set HTTPS_PROXY in the environment instead"
        raise InputError(f"{option}: an address with a name or password in it shows them to everybody", hint)
    if parts.scheme not in ("http", "https") or not _HOST.fullmatch(_host(parts)) or port == 0:
        raise InputError(f"{option}: {text!r} is no address", "write it as https://host or http://localhost:8321")
    return parts


def _host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    return f"[{host}]" if ":" in host else host


def refuse_tokens(arguments: Iterable[str]) -> None:
    """Look for a token among the words of the command line.

    Raises:
        InputError: there is one; the message does not repeat it.
    """
    if any(_TOKEN_SHAPE.search(argument) for argument in arguments):
        raise InputError("a token on the command line can be read by everybody", f"revoke it, and {KEEP_IT_APART}")


class Token:
    """The token, read anew for each request, so that a file may be replaced while the sidecar runs."""

    def __init__(self, file: Path | None, environment: str | None) -> None:
        """Read it for the first time; the file comes before the environment.

        Raises:
            InputError: the file cannot be read, or what stands there is no token.
        """
        self._file = file
        self._last = _checked(TOKEN_VARIABLE, environment) if environment else None
        if file is not None:
            try:
                self._last = _read(file)
            except OSError as error:
                raise InputError(f"--token-file: {file} cannot be read: {error.strerror or error}") from error

    def value(self) -> str | None:
        """The token as it is now; None where there is none."""
        if self._file is not None:
            try:
                self._last = _read(self._file)
            except (OSError, InputError):  # it is being replaced; the one before may still be good
                return self._last
        return self._last


def _read(file: Path) -> str:
    with file.open("rb") as stream:
        return _checked("--token-file", stream.read(4096).decode("ascii", "replace"))


def _checked(where: str, text: str) -> str:
    token = text.strip()
    if not _TOKEN.fullmatch(token):
        raise InputError(f"{where}: what stands there is no token", "it is one word on one line")
    return token


def refuse_open_road(place: Address, has_token: bool, is_allowed: bool) -> None:
    """Refuse to send a token where others can read it on the way.

    Raises:
        InputError: no TLS, another machine, and not allowed by --insecure-http.
    """
    if has_token and not (place.is_encrypted or place.is_local or is_allowed):
        raise InputError(
            "--to: over http:// everybody on the way can read the token",
            "use https://, or --insecure-http inside a network that you trust",
        )

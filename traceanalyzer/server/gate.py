"""What is refused before anybody looks at the request: foreign hosts, other sites' forms, tokens in addresses.

The Host check also stops DNS rebinding. An unsafe request from a browser must say that it comes from this very origin;
a client that is no browser sends neither header and needs a token, which no other site has.

What could be wrong: an address holds a token that is not written as ours are; then it is logged nowhere, but a proxy
in front may log it.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from urllib.parse import unquote_to_bytes, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from traceanalyzer.network import TOKEN_START
from traceanalyzer.server import problems
from traceanalyzer.server.problems import Problem
from traceanalyzer.server.settings import Settings

_SAFE = ("GET", "HEAD", "OPTIONS")
_OWN = ("localhost", "127.0.0.1", "::1")
_EVERY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 not bound to: as a name a browser takes it for this machine
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")
_TOKEN = re.compile(TOKEN_START.encode())
_TOKEN_PARAMETER = re.compile(rb"(?:^|[&;])(?:access_token|api_key|token|authorization)=", re.IGNORECASE)


class Gate:
    """ASGI middleware that lets only requests through that may be for us.

    Args:
        app: what answers them.
        settings: which hosts are ours.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        """Wrap `app`."""
        self._app = app
        self._hosts = hosts(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        problem = self._refused(scope, Headers(scope=scope)) if scope["type"] == "http" else None
        if problem is None:
            await self._app(scope, receive, send)
        else:
            await problems.response(problem)(scope, receive, send)

    def _refused(self, scope: Scope, headers: Headers) -> Problem | None:
        given = headers.getlist("host")
        if len(given) != 1 or host_of(given[0]) not in self._hosts:
            return Problem(400, "this server has another name; name it by --allowed-host or --public-url")
        if _holds_token(scope):
            return Problem(
                400,
                "a token stands in the address, where logs keep it: revoke it, and send it as Authorization: Bearer",
            )
        if scope["method"] not in _SAFE and _is_cross_site(headers, given[0]):
            return Problem(403, "the request comes from another site")
        return None


def hosts(settings: Settings) -> frozenset[str]:
    """The names by which the server may be asked for, without ports, in lower case."""
    names = [*_OWN, settings.host, *settings.allowed_hosts]
    if settings.public_url:
        names.append(urlsplit(settings.public_url).hostname or "")
    return frozenset(name.strip("[]").rstrip(".").lower() for name in names) - {"", *_EVERY_ADDRESS}


def host_of(header: str) -> str | None:
    """The name in a Host header without its port, in lower case; None where it is no host."""
    match = _HOST.fullmatch(header)
    return None if match is None else (match[1] or match[2]).rstrip(".").lower()


def _holds_token(scope: Scope) -> bool:
    query = scope.get("query_string", b"")
    path = scope.get("raw_path") or scope["path"].encode("utf-8", "replace")
    address = path + b"?" + query
    texts = {address, unquote_to_bytes(address)}
    return bool(_TOKEN_PARAMETER.search(unquote_to_bytes(query))) or any(_TOKEN.search(text) for text in texts)


def _is_cross_site(headers: Headers, host: str) -> bool:
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc.lower() != host.lower()


class Drained:
    """ASGI middleware that reads on for a moment before it answers a request whose body was not read, and then closes.

    Closing a connection on which bytes are still arriving can cost the client the answer, so a bounded rest is read
    first. Without closing, the HTTP server would read the rest for as long as the client sends one. A client that
    waits for "100 Continue" is not asked for its body.

    Args:
        app: what answers.
    """

    _MOST_BYTES = 4 << 20
    _MOST_S = 1.0

    def __init__(self, app: ASGIApp) -> None:
        """Wrap `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        ended = "transfer-encoding" not in headers and headers.get("content-length", "0") == "0"
        is_waiting = headers.get("expect", "").lower() == "100-continue"

        async def receiving() -> Message:
            nonlocal ended, is_waiting
            is_waiting = False
            message = await receive()
            ended = ended or not _has_more(message)
            return message

        async def sending(message: Message) -> None:
            nonlocal ended
            if message["type"] == "http.response.start" and not ended:
                ended = not is_waiting and await _discard(receive, self._MOST_BYTES, self._MOST_S)
                if not ended:
                    MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        await self._app(scope, receiving, sending)


def _has_more(message: Message) -> bool:
    return message["type"] == "http.request" and bool(message.get("more_body", False))


async def _discard(receive: Receive, most_bytes: int, most_s: float) -> bool:
    """Whether the body ended within so many bytes and seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(most_s):
            while most_bytes > 0:
                message = await receive()
                if not _has_more(message):
                    return True
                most_bytes -= len(message.get("body", b""))
    return False

"""The server's log: one JSON object per line on stderr; nothing in it was said by a client but a method.

A request is logged by its route's template, never by its address: addresses hold share links. Whatever looks like a
token is blacked out of every line, tracebacks included. What could be wrong: a library logs a secret that looks like
nothing.
"""

from __future__ import annotations

import json
import logging
import re
import time
from datetime import UTC, datetime
from typing import Any, TextIO

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from traceanalyzer.network import TOKEN_ID
from traceanalyzer.server.metrics import Metrics

_TOKEN = re.compile(rf"({TOKEN_ID})[A-Za-z0-9_-]+")
_SHARED = re.compile(r"/s/[A-Za-z0-9_-]{8,}")
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}
_METHODS = frozenset({"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH"})
_log = logging.getLogger("traceanalyzer.requests")


class JsonLines(logging.Formatter):
    """One JSON object per record: its time (UTC), level, message, what was given as `extra`, and a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        line.update((key, value) for key, value in record.__dict__.items() if key not in _STANDARD)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return scrubbed(json.dumps(line, default=str))


def configure(stream: TextIO) -> None:
    """Let every logger of the process write JSON lines to `stream`; uvicorn's own access log stays silent."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("traceanalyzer").setLevel(logging.INFO)
    logging.getLogger("uvicorn.access").disabled = True


def scrubbed(text: str) -> str:
    """The text without the secrets of tokens and share links."""
    return _SHARED.sub("/s/...", _TOKEN.sub(r"\1...", text))


class RequestLog:
    """ASGI middleware that logs and counts every request when its answer has ended.

    Args:
        app: what answers.
        metrics: where it is counted.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        """Wrap `app`."""
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()
        status, received, sent = 499, 0, 0  # 499: the client went away before an answer began

        async def receiving() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        async def sending(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
            sent += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receiving, sending)
        finally:
            seconds = time.perf_counter() - begun
            self._note(scope, status, seconds, received, sent)

    def _note(self, scope: Scope, status: int, seconds: float, received: int, sent: int) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "other"
        route = getattr(scope.get("route"), "path", "-")
        caller = scope.get("state", {}).get("caller")
        self._metrics.answered(method, route, status, seconds)
        fields = {
            "event": "request", "method": method, "route": route, "status": status, "ms": round(seconds * 1e3, 1),
            "received": received, "sent": sent, "caller": caller.name if caller else "-",
        }  # fmt: skip
        _log.info("request", extra=fields)

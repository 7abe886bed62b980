"""The headers of every answer, and what each kind of page may do.

An answer that sets one of these headers itself keeps its own. What could be wrong: a page that is served by another
path than this server's middleware has none of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

API_CSP = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
REPORT_CSP = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""A stored report has no origin and cannot reach the network; its own policy narrows scripts to the one it holds."""

SECURITY: Mapping[str, str] = {
    "Content-Security-Policy": API_CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin-allow-popups",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "X-Robots-Tag": "noindex, nofollow",
}
_HSTS = "max-age=63072000"
_UNSAFE_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_CHARS = 120


def attachment(name: str) -> str:
    """The Content-Disposition of a download (RFC 6266): an ASCII name, and the real one percent-encoded."""
    base = name.rsplit("/", 1)[-1].rsplit("\\", 1)[-1]
    plain = _UNSAFE_IN_NAMES.sub("_", base).strip("._")[:_NAME_CHARS] or "trace.json"
    header = f'attachment; filename="{plain}"'
    if plain != base:
        header += f"; filename*=UTF-8''{quote(base[:_NAME_CHARS], safe='')}"
    return header


def report_headers() -> dict[str, str]:
    """The headers that let a stored report be shown, also in a frame of our own pages."""
    return {"Content-Security-Policy": REPORT_CSP, "X-Frame-Options": "SAMEORIGIN"}


class SecurityHeaders:
    """ASGI middleware that adds what an answer does not say itself, and removes what would let other sites read it.

    Args:
        app: what answers.
        https: whether the public address is an HTTPS one.
    """

    def __init__(self, app: ASGIApp, https: bool) -> None:
        """Wrap `app`."""
        self._app = app
        self._headers = {**SECURITY, "Strict-Transport-Security": _HSTS} if https else dict(SECURITY)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
                if "Access-Control-Allow-Origin" in headers:
                    del headers["Access-Control-Allow-Origin"]
            await send(message)

        await self._app(scope, receive, sending)

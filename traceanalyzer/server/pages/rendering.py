"""The templates of the pages, their style sheets and scripts, and the policy that goes with every page.

Templates are made safe as the report's are (`report.templating`). A style sheet or script has the hash of its content
in its address, so a browser may keep it for good and never mixes two versions.

What could be wrong: the policy allows scripts of this origin, and a stored report is of this origin too; reports are
served with `sandbox`, which takes the origin away from them, and never as a script.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any

from jinja2 import Environment

from traceanalyzer.report.format import UNKNOWN
from traceanalyzer.report.templating import asset, environment
from traceanalyzer.server.pages.words import text

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-src 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    # With `no-referrer` a browser would send `Origin: null` with our own forms, as a stranger's site can make it do.
    "Referrer-Policy": "same-origin",
}
"""What every page is sent with, besides what the server sends with every answer (`server.headers`)."""

_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
_SOURCES = {
    "report.css": "report.css",
    "server.css": "server/static/server.css",
    "server.js": "server/static/server.js",
    "perfetto.js": "server/static/perfetto.js",
}
_DIGITS = 16


def render(template: str, **context: Any) -> str:
    """One page."""
    return _environment().get_template(f"server/{template}").render(**context)


@functools.cache
def static(name: str) -> str:
    """The address of a style sheet or script."""
    stem, _, kind = name.partition(".")
    digest = hashlib.sha256(asset(_SOURCES[name]).encode()).hexdigest()[:_DIGITS]
    return f"/static/{stem}-{digest}.{kind}"


def content(path: str) -> tuple[str, str] | None:
    """The text and media type of what has the address `path`; None: nothing has."""
    for name, source in _SOURCES.items():
        if static(name) == path:
            return asset(source), _TYPES[name.rpartition(".")[2]]
    return None


@functools.cache
def _environment() -> Environment:
    made = environment()
    made.globals.update(t=text, unknown=UNKNOWN, static=static)
    return made

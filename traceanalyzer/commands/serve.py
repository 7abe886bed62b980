"""`traceanalyzer serve`: takes traces in, analyses them in children, and shows their reports."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from traceanalyzer.commands.server_options import Folder, folder_of, need_server
from traceanalyzer.errors import InputError

if TYPE_CHECKING:
    from traceanalyzer.server.settings import Settings

_GRACE_S = 30.0

_Host = Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen; beyond this machine only with a token.")]
_Port = Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="The port; 0 for any free one, which is told.")]
_PublicUrl = Annotated[
    str | None, typer.Option(metavar="URL", help="What others call the server, as https://traces.example.org/.")
]
_AllowedHost = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="A further name that requests may use; repeatable.")
]
_MaxBody = Annotated[float | None, typer.Option(metavar="MB", min=0.001, help="Largest upload, compressed [256].")]
_KeepDays = Annotated[
    float | None, typer.Option(metavar="DAYS", min=0, help="Delete what is older and not pinned [90]; 0: never.")
]
_KeepDaysFor = Annotated[
    list[str] | None, typer.Option(metavar="ENVIRONMENT=DAYS", help="The same for one environment label; repeatable.")
]
_Quota = Annotated[
    float | None, typer.Option(metavar="GB", min=0.001, help="Delete the oldest unpinned beyond this much [none].")
]
_MinFree = Annotated[float | None, typer.Option(metavar="GB", min=0, help="Take nothing with less free disk [1.07].")]
_Workers = Annotated[int, typer.Option(metavar="N", min=0, max=64, help="Analyses at a time, each in its own process.")]
_Memory = Annotated[float | None, typer.Option(metavar="GB", min=0.1, help="Memory of one analysis at most [8].")]
_RedactedOnly = Annotated[bool, typer.Option("--redacted-only", help="Refuse traces that were not redacted.")]
_Grace = Annotated[
    float, typer.Option(metavar="SECONDS", min=1, max=3600, help="What running uploads and analyses get on SIGTERM.")
]


def serve(
    folder: Folder = None,
    host: _Host = "127.0.0.1",
    port: _Port = 8321,
    public_url: _PublicUrl = None,
    allowed_host: _AllowedHost = None,
    max_body_mb: _MaxBody = None,
    keep_days: _KeepDays = None,
    keep_days_for: _KeepDaysFor = None,
    quota_gb: _Quota = None,
    min_free_gb: _MinFree = None,
    workers: _Workers = 1,
    analysis_memory_gb: _Memory = None,
    redacted_only: _RedactedOnly = False,
    grace: _Grace = _GRACE_S,
) -> None:
    """Run the server: uploads, analyses, reports and share links.

    It keeps everything in one folder, in SQLite and as files. It says where it listens on standard error, and runs
    until SIGTERM or Ctrl-C.
    """
    need_server()
    numbers = {"max-body-mb": max_body_mb, "keep-days": keep_days, "quota-gb": quota_gb, "min-free-gb": min_free_gb}
    numbers |= {"analysis-memory-gb": analysis_memory_gb, "grace": grace}
    for name, value in numbers.items():
        if value is not None and not math.isfinite(value):
            raise InputError(f"--{name}: a number is needed")
    from traceanalyzer.server.running import run
    from traceanalyzer.server.settings import Settings

    settings = Settings(
        folder=folder_of(folder),
        host=host,
        port=port,
        public_url=None if public_url is None else _checked_url(public_url),
        allowed_hosts=tuple(allowed_host or ()),
        redacted_only=redacted_only,
        workers=workers,
    )
    settings = _with_limits(settings, max_body_mb, min_free_gb, analysis_memory_gb)
    settings = _with_retention(settings, keep_days, keep_days_for or (), quota_gb, min_free_gb)
    _refuse_open_doors(settings)
    raise typer.Exit(run(settings, grace))


def _refuse_open_doors(settings: Settings) -> None:
    """Refuse what `run` would refuse later, before a folder is made: without a database there is no token."""
    from traceanalyzer.server.running import refuse_open_doors

    if settings.database_file is None or settings.database_file.exists():
        return
    try:
        refuse_open_doors(settings, any_token=False)
    except InputError as error:
        make = f"traceanalyzer token create NAME --folder {shlex.quote(str(settings.folder))}"
        raise InputError(error.message, f"make one: {make}") from error


def _with_limits(settings: Settings, body_mb: float | None, free_gb: float | None, memory_gb: float | None) -> Settings:
    limits, analysis = settings.limits, settings.analysis
    if body_mb is not None:
        limits = replace(limits, max_body_bytes=round(body_mb * 1e6))
    if free_gb is not None:
        limits = replace(limits, min_free_bytes=round(free_gb * 1e9))
    if memory_gb is not None:
        analysis = replace(analysis, memory_bytes=round(memory_gb * 1e9))
    return replace(settings, limits=limits, analysis=analysis)


def _with_retention(
    settings: Settings, days: float | None, days_for: Sequence[str], quota_gb: float | None, free_gb: float | None
) -> Settings:
    kept = settings.retention
    if days is not None:
        kept = replace(kept, keep_days=days or None)
    if days_for:
        kept = replace(kept, keep_days_by_environment=dict(_one_environment(word) for word in days_for))
    if quota_gb is not None:
        kept = replace(kept, quota_bytes=round(quota_gb * 1e9))
    if free_gb is not None:
        kept = replace(kept, min_free_bytes=round(free_gb * 1e9))
    return replace(settings, retention=kept)


def _one_environment(word: str) -> tuple[str, float]:
    name, equals, days = word.rpartition("=")
    try:
        number = float(days)
    except ValueError:
        number = math.nan
    if not (equals and name and math.isfinite(number) and number > 0):
        raise InputError(f"--keep-days-for: {word[:80]!r} is not ENVIRONMENT=DAYS", "as staging=7")
    return name, number


def _checked_url(text: str) -> str:
    """`text` as the address of a server's root, ending in a slash."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment or "@" in parts.netloc or parts.path not in ("", "/"):
        raise InputError(f"--public-url: {text[:80]!r} is no server's address", "as https://traces.example.org/")
    return f"{parts.scheme}://{parts.netloc}/"

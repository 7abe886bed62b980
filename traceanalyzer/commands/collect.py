"""`traceanalyzer collect`: hands its words as they are to the collector, which stands apart and reads them itself."""

from __future__ import annotations

import os

import typer

from traceanalyzer.errors import InputError

SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
"""What Typer must leave alone: also `-h`, which is the collector's own."""


def collect(context: typer.Context) -> None:
    """Record a run as it is: collect [options] -- COMMAND."""
    if os.name != "posix":
        raise InputError("collect runs on Linux and macOS")
    from traceanalyzer.collect.supervisor import main

    raise typer.Exit(main(context.args))

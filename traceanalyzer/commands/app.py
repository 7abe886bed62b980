"""The Typer application: the commands and the options that belong to none of them.

Nothing here or in the modules it imports may load pandas, a chart library or torch at import time: `--help` and
`--version` answer at once. Heavy imports stand inside the commands' functions, and a test holds this.
"""

from __future__ import annotations

from typing import Annotated

import typer

from traceanalyzer import __version__
from traceanalyzer.commands.backup import backup, restore
from traceanalyzer.commands.collect import SETTINGS, collect
from traceanalyzer.commands.gpus import gpus
from traceanalyzer.commands.report import report
from traceanalyzer.commands.serve import serve
from traceanalyzer.commands.simulate import simulate
from traceanalyzer.commands.token import token
from traceanalyzer.commands.upload import upload

app = typer.Typer(
    name="traceanalyzer",
    help="Says where the time of an LLM generation run went, from a PyTorch profiler trace.",
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain help: no boxes to paste into a ticket, and nothing more to import.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(report)
app.command(context_settings=SETTINGS, add_help_option=False)(collect)
app.command()(gpus)
app.command()(simulate)
app.command()(upload)
app.command()(serve)
app.add_typer(token, name="token")
app.command()(backup)
app.command()(restore)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"traceanalyzer {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _common(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())

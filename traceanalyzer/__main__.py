"""`traceanalyzer` and `python -m traceanalyzer`: `main` is the whole error policy."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import cast

import typer

from traceanalyzer.commands.app import app
from traceanalyzer.commands.output import abandon_stdout
from traceanalyzer.commands.progress import say
from traceanalyzer.errors import TraceAnalyzerError

# What Typer raises for a command line that it cannot read. It may bring its own copy of click, so the class is reached
# through the one of its children that Typer exports.
_UsageError = cast(type[typer.BadParameter], typer.BadParameter.__mro__[1])
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code, and says in one line on standard error what went wrong.

    0: done. 1: a gate failed. 2: the request or the input cannot be used. 130, 141: Ctrl-C, the reader has gone.
    """
    try:
        code = app(args=arguments, prog_name="traceanalyzer", standalone_mode=False)
    except TraceAnalyzerError as error:
        return _failed(str(error), error.exit_code)
    except _UsageError as error:
        return _failed(f"{error.format_message()} (see traceanalyzer --help)", 2)
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    except MemoryError:
        return _failed("the trace does not fit into this machine's memory (record a shorter window)", 2)
    except OSError as error:
        abandon_stdout()
        return _failed(f"the system refuses: {error.strerror or error}", 2)
    return code if isinstance(code, int) else 0


def _failed(message: str, code: int) -> int:
    with contextlib.suppress(OSError):  # standard error may be full or closed; the exit code still says it
        say(f"traceanalyzer: {message}")
    return code


if __name__ == "__main__":
    sys.exit(main())

"""The measured programs: each reads one trace in a process of its own and prints what the call itself took.

Imports stand outside the measured call. Only what is measured is loaded, so that the process's peak memory is its own.
"""

from __future__ import annotations

import json
import logging
import sys
import time


def read(path: str) -> dict[str, float]:
    """`traceanalyzer.read_trace`: the call's seconds, its CPU seconds, and the rows it kept."""
    from traceanalyzer.trace import read_trace

    wall, cpu = time.perf_counter(), time.process_time()
    trace = read_trace(path)
    rows = sum(map(len, (trace.kernels, trace.launches, trace.ops, trace.annotations, trace.syncs, trace.counters)))
    return {"call_s": time.perf_counter() - wall, "call_cpu_s": time.process_time() - cpu, "rows": rows}


def hta(path: str) -> dict[str, float]:
    """HTA's parser with its default configuration: the file as a table of events, links not yet made."""
    from hta.common.trace_parser import parse_trace_dataframe
    from hta.configs.parser_config import ParserConfig

    logging.disable(logging.WARNING)
    wall, cpu = time.perf_counter(), time.process_time()
    _, events, _ = parse_trace_dataframe(path, ParserConfig.get_default_cfg())
    return {"call_s": time.perf_counter() - wall, "call_cpu_s": time.process_time() - cpu, "rows": len(events)}


def versions(*names: str) -> dict[str, str]:
    """The installed version of each distribution."""
    from importlib.metadata import version

    return {name: version(name) for name in names}


if __name__ == "__main__":
    result = {"read": read, "hta": hta, "versions": versions}[sys.argv[1]](*sys.argv[2:])
    sys.stdout.write(json.dumps(result))

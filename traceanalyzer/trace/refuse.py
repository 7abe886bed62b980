"""Says in one line why a file is no PyTorch profiler trace, and what to do about it.

Files are known by their first bytes, never by name alone, and nothing is ever unpickled or unpacked. What could be
wrong: a foreign format without a signature passes here and is refused later, as JSON without events.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from traceanalyzer.errors import CorruptTraceError, InputError, TraceAnalyzerError, UnsupportedTraceError

_EXTRACT = "extract it and pass the trace inside"
_MAGIC: tuple[tuple[bytes, str, str], ...] = (
    (b"PK\x03\x04", "is a zip archive", _EXTRACT),
    (b"PK\x05\x06", "is an empty zip archive", _EXTRACT),
    (b"7z\xbc\xaf\x27\x1c", "is a 7z archive", _EXTRACT),
    (b"Rar!", "is a rar archive", _EXTRACT),
    (b"BZh", "is compressed with bzip2", "decompress it first; gzip and zstd are read directly"),
    (b"\xfd7zXZ\x00", "is compressed with xz", "decompress it first; gzip and zstd are read directly"),
    (b"\x04\x22\x4d\x18", "is compressed with lz4", "decompress it first; gzip and zstd are read directly"),
    (b"NVR\x00", "is an Nsight Compute report", "Nsight input is not supported yet; record with torch.profiler"),
    (b"PAR1", "is a Parquet file", "pass the trace that torch.profiler exported"),
    (b"\x89HDF", "is an HDF5 file", "pass the trace that torch.profiler exported"),
    (b"\x7fELF", "is a program", "pass the trace that torch.profiler exported"),
    (b"version https://git-lfs", "is a Git LFS pointer, not the file itself", "run git lfs pull"),
)
_NSIGHT_HINT = "Nsight input is not supported yet; record with torch.profiler"
_TRACE_HINT = "pass the Chrome trace JSON that torch.profiler exported"
_ACCELERATORS: Mapping[str, str] = {
    "mtia_runtime": "MTIA",
    "mtia_ccp_events": "MTIA",
    "mtia_insight": "MTIA",
    "mtia_counters": "MTIA",
    "hpu_op": "Intel Gaudi (HPU)",
    "glow_runtime": "Glow",
    "privateuse1_runtime": "a privateuse1 accelerator",
    "privateuse1_driver": "a privateuse1 accelerator",
}


def refuse_binary(name: str, head: bytes) -> None:
    """Raise for a file whose first bytes show that it is no JSON.

    Args:
        name: base name of the file, for the message.
        head: its first bytes after decompression, at least 512 unless the file is shorter.

    Raises:
        InputError, UnsupportedTraceError: with what the file is and what to do.
    """
    for magic, what, hint in _MAGIC:
        if head.startswith(magic):
            raise InputError(f"{name} {what}", hint)
    if head[257:262] == b"ustar":
        raise InputError(f"{name} is a tar archive", _EXTRACT)
    if head.startswith(b"SQLite format 3\x00"):
        raise UnsupportedTraceError(f"{name} is an SQLite database, as Nsight Systems exports", _NSIGHT_HINT)
    if len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5:
        raise UnsupportedTraceError(
            f"{name} is a Python pickle, such as a memory snapshot; it is not loaded, as that would run its code",
            _TRACE_HINT,
        )
    first_line = head.split(b"\n", 1)[0]
    if b"," in first_line and (b"Time (%)" in first_line or b"Total Time (ns)" in first_line):
        raise UnsupportedTraceError(f"{name} is a CSV table of nsys stats", _NSIGHT_HINT)
    if name.endswith((".nsys-rep", ".qdrep", ".ncu-rep")):
        raise UnsupportedTraceError(f"{name} is an Nsight report", _NSIGHT_HINT)
    text = head.lstrip()
    if text and not text.startswith((b"{", b"[")):
        raise UnsupportedTraceError(f"{name} is not JSON", _TRACE_HINT)


def without_events(name: str, keys: Collection[str], complete: bool) -> TraceAnalyzerError:
    """The error for JSON in which no list of events was found.

    Args:
        name: base name of the file.
        keys: the top-level keys seen.
        complete: whether the JSON text ended as it should.
    """
    if any(key.startswith("rocprofiler-sdk") for key in keys):
        return UnsupportedTraceError(f"{name} is rocprofv3 JSON output", "rocprof input is not supported; "
                                     "record with torch.profiler")  # fmt: skip
    if "report_id" in keys and "ledger" in keys:
        return InputError(f"{name} is a report of this tool, not a trace", "pass the trace it was made from")
    if "nodes" in keys and "schema" in keys:
        return UnsupportedTraceError(f"{name} is a PyTorch execution trace, which holds no times", _TRACE_HINT)
    if not complete:
        return CorruptTraceError(f"{name} ends before its first event", "record or copy it again")
    return UnsupportedTraceError(f"{name} is JSON without traceEvents", _TRACE_HINT)


def foreign_events(name: str, counts: Mapping[str, int]) -> TraceAnalyzerError:
    """The error for a trace whose events PyTorch did not write, or for an accelerator that is not supported.

    Args:
        name: base name of the file.
        counts: events per category, the unknown ones.
    """
    listed = ", ".join(f"{count} {category}" for category, count in _most(counts))
    accelerators = unsupported_accelerators(counts)
    if accelerators:
        return UnsupportedTraceError(
            f"{name} was recorded on {' and '.join(accelerators)}, which is not supported; it holds {listed} events",
            "CUDA, ROCm and CPU recordings are read",
        )
    what = f"its categories are {listed}" if listed else "its events have no category"
    return UnsupportedTraceError(f"{name} is a Chrome trace that PyTorch did not write; {what}", _TRACE_HINT)


def unsupported_accelerators(counts: Mapping[str, int]) -> tuple[str, ...]:
    """The names of unsupported accelerators whose event categories occur in `counts`."""
    return tuple(dict.fromkeys(name for category, name in _ACCELERATORS.items() if counts.get(category)))


def _most(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:5]
    return [(printable(category)[:40], count) for category, count in ranked]


def printable(text: str) -> str:
    """The text on one line: characters that a terminal may not show are replaced by "?"."""
    return "".join(char if char.isprintable() else "?" for char in text)

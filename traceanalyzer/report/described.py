"""The model that ran, for the document: as its recorder describes it, else the layer count that the trace shows.

A model without a name of its own goes by its architecture. What could be wrong: the recorder's word is taken as it
stands; a field of another type than the document's is left out.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping

from traceanalyzer.report.sections import ModelInfo
from traceanalyzer.report.values import capped

_WORDS = ("name", "fingerprint", "dtype", "kv_dtype", "quantization")
_COUNTS = tuple(name for name in ModelInfo.model_fields if name not in (*_WORDS, "source"))


def described(collector: Mapping[str, object] | None, layers: int | None) -> ModelInfo | None:
    """The model, or None where nothing is known of it.

    Args:
        collector: the recorder's block of the trace, see `trace.collector`.
        layers: transformer layers that a step runs.
    """
    block = (collector or {}).get("model")
    said = typing.cast("Mapping[str, object]", block) if isinstance(block, Mapping) else {}
    words = {name: capped(value) for name in _WORDS if isinstance(value := said.get(name), str) and value}
    if "name" not in words and isinstance(kind := said.get("architecture"), str) and kind:
        words["name"] = capped(kind)
    counts = {name: value for name in _COUNTS if _count(value := said.get(name))}
    if words or counts:
        return ModelInfo.model_validate({"layers": layers, **words, **counts, "source": "recorder"})
    return ModelInfo(layers=layers, source="trace") if layers else None


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0

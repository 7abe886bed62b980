"""Puts the description of a model together: the recorder's block, the user's model, the trace, a recognised config.

What could be wrong: recognition is by shape, so a fine-tune is taken for what it was tuned from, and two models of one
shape for each other, which is why their names then stand together.
"""

from __future__ import annotations

from dataclasses import astuple, replace
from types import MappingProxyType

from traceanalyzer.analysis.model.compare import (
    WEIGHT_FIELDS,
    Comparison,
    Contradiction,
    compare,
    multiplies_plain,
)
from traceanalyzer.analysis.model.description import CATALOGUE, FIELDS, RECORDER, TRACE, USER, Description
from traceanalyzer.analysis.model.observed import Observed
from traceanalyzer.analysis.model.recorded import fields_of
from traceanalyzer.catalog import weight_bits
from traceanalyzer.catalog.hf_config import GivenModel
from traceanalyzer.catalog.models import ModelConfig, models
from traceanalyzer.trace.collector import Section
from traceanalyzer.trace.tables import Note

_MOST_NAMES = 3


def describe(facts: Section, given: GivenModel | None, seen: Observed) -> tuple[Description, tuple[Note, ...]]:
    """The description, and what has to be told about it.

    Args:
        facts: the recorder's block on the model; empty without a recorder.
        given: what the user named.
        seen: what the trace shows.
    """
    recorded = Description(**fields_of(facts))  # type: ignore[arg-type]
    config, source = (given.config, USER) if given else (recognised(recorded, seen), CATALOGUE)
    against = compare(config, recorded, seen) if config else None
    tp = against.tp if against else _ranks_alone(seen)
    contradicted = frozenset(one.field for one in against.contradictions) if against else frozenset[str]()
    by_trace: dict[str, object] = {} if tp is None else {"tp": tp}
    if config or facts or seen.layers or seen.hidden:  # products alone make no model
        by_trace |= _shown(seen, tp)
    another = bool(contradicted & WEIGHT_FIELDS - {"quantization"})
    by_config = _of_config(config, given, contradicted) if config and not another else {}
    layers = ((RECORDER, fields_of(facts)), *_in_order(source, by_config, by_trace))
    merged: dict[str, object] = {}
    sources: dict[str, str] = {}
    for whose, said in layers:
        for name, value in said.items():
            if value is not None and name not in merged:
                merged[name], sources[name] = value, whose
    found = Description(
        **merged,  # type: ignore[arg-type]
        sources=MappingProxyType({name: sources[name] for name in FIELDS if name in sources}),
        config=config,
        config_source=source if config else None,
        contradicted=contradicted,
    )
    return _with_bits(found, seen), _notes(found, against, given)


def recognised(recorded: Description, seen: Observed) -> ModelConfig | None:
    """The bundled config whose shape this is; None where none fits, or several that are not the same."""
    layers, hidden = recorded.layers or seen.layers, recorded.hidden or seen.hidden
    rows = recorded.vocab or seen.table_rows or seen.head_rows
    if not layers or not hidden or not rows:
        return None
    fitting = [
        model
        for model in models()
        if (model.layers, model.hidden) == (layers, hidden) and not _differs(compare(model, recorded, seen))
    ]
    if not fitting or len({_shape(model) for model in fitting}) > 1:
        return None
    names = [model.id for model in fitting]
    return replace(fitting[0], id=" / ".join(names[:_MOST_NAMES]))


def _differs(against: Comparison) -> bool:
    """Whether a shape differs. How weights are stored is no matter of shape: that is told, and the shape used."""
    return any(one.field != "quantization" for one in against.contradictions)


def _shape(model: ModelConfig) -> tuple[object, ...]:
    """Everything that figures are made of."""
    same = replace(
        model, id="", hf_name="", aliases=(), architecture="", max_position=0, dtype="", published_parameters=None,
        published_exact=False, published_source=None, sources=(), confidence="", note=None, weight_quantization=None,
    )  # fmt: skip
    return astuple(same)


def _ranks_alone(seen: Observed) -> int | None:
    return 1 if (seen.world_size or 1) == 1 and not seen.reduces else None


def _in_order(
    source: str, by_config: dict[str, object], by_trace: dict[str, object]
) -> tuple[tuple[str, dict[str, object]], ...]:
    """What the user says comes before what the trace shows, except the data types, which are loaded as one likes."""
    types: dict[str, object] = {name: by_trace[name] for name in ("dtype", "kv_dtype") if name in by_trace}
    if source == USER:
        return (TRACE, types), (USER, by_config), (TRACE, by_trace)
    return (TRACE, by_trace), (CATALOGUE, by_config)


def _shown(seen: Observed, tp: int | None) -> dict[str, object]:
    """What the trace shows of the whole model; of its parts only where it is known how many there are."""
    found: dict[str, object] = {"layers": seen.layers, "hidden": seen.hidden}
    found |= {"dtype": seen.dtype, "kv_dtype": seen.kv_dtype, "head_dim": seen.head_dim}
    if tp is not None:
        found["heads"] = seen.heads * tp if seen.heads else None
    if tp == 1:
        found |= {"vocab": seen.table_rows or seen.head_rows, "kv_heads": seen.kv_heads}
    return {name: value for name, value in found.items() if value is not None}


def _of_config(config: ModelConfig, given: GivenModel | None, contradicted: frozenset[str]) -> dict[str, object]:
    moe = config.moe
    bundled = given is None or given.config.confidence != "given"
    found: dict[str, object] = {
        "name": config.id if bundled else config.hf_name,
        "architecture": config.architecture,
        "layers": config.layers,
        "hidden": config.hidden,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "ffn": config.ffn,
        "vocab": config.vocab,
        "gated": config.mlp_gated,
        "experts": moe.experts if moe else None,
        "experts_per_token": moe.experts_per_token if moe else None,
        "expert_ffn": moe.ffn if moe else None,
        "shared_experts": moe.shared_experts if moe else None,
        "first_dense_layers": moe.first_dense_layers if moe else None,
        "sliding_window": config.sliding_window,
        "mla": config.mla,
        "tied_embeddings": config.tied_embeddings,
        "parameters": config.parameters,
        "dtype": config.dtype,
        "quantization": config.weight_quantization,
    }
    return {name: value for name, value in found.items() if name not in contradicted}


def _with_bits(found: Description, seen: Observed) -> Description:
    """The bits of each group of weights, where the config says how they are stored; plain ones follow the data type.

    What the kernels multiply as plain weights is plain, whatever the config says of the checkpoint.
    """
    config, source = found.config, found.config_source
    if config is None or source is None:
        return found
    bits, size, contradicted = config.weight_bits, weight_bits.bits_of(found.dtype), found.contradicted
    if size and multiplies_plain(config, seen) and not found.quantization:
        bits, source, contradicted = weight_bits.plain(size), TRACE, contradicted - {"quantization"}
    elif "quantization" in contradicted:
        return found
    elif size and not bits.quantized:
        bits = weight_bits.plain(size)
    sources = MappingProxyType({**found.sources, "weight_bits": source})
    return replace(found, weight_bits=bits, contradicted=contradicted, sources=sources)


def _notes(found: Description, against: Comparison | None, given: GivenModel | None) -> tuple[Note, ...]:
    if against is None:
        return ()
    notes = []
    if against.contradictions and given is not None:
        notes.append(Note("given_model_contradicted", "warning", 1, _spelt(against.contradictions)))
    elif any(one.source == TRACE for one in against.contradictions):
        notes.append(Note("known_model_stored_otherwise", "info", 1, found.name or ""))
    if found.tp is None and given is not None:
        notes.append(Note("model_ranks_unknown", "warning"))
    return tuple(notes)


def _spelt(contradictions: tuple[Contradiction, ...]) -> str:
    by = {RECORDER: "its recorder", TRACE: "the trace"}
    return "; ".join(
        f"{one.field.replace('_', ' ')} {one.config}, {by[one.source]} says {str(one.other)[:40]}"
        for one in contradictions
    )

"""References: a real capture against independent figures, an eager run beside a replayed one, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from traceanalyzer import read_trace
from traceanalyzer.analysis import hta
from traceanalyzer.analysis.pipeline import Analysis, AnalysisOptions, analyze
from traceanalyzer.analysis.replay import evidence_of
from traceanalyzer.analysis.replay.reference import Reference, references
from traceanalyzer.analysis.replay.unnamed import with_names
from traceanalyzer.errors import InputError
from traceanalyzer.simulate.passes import passes
from traceanalyzer.simulate.scenario import Scenario
from traceanalyzer.simulate.variants import Variant
from traceanalyzer.simulate.write import simulate
from traceanalyzer.trace.tables import KERNEL, MISSING, Trace
from traceanalyzer.trace.windows import joined

DECODE, CAPTURE = "mi300x-vllm-decode-full-graph.json.gz", "mi300x-vllm-graph-capture.json.gz"
SGLANG_CAPTURE = "mi300x-sglang-graph-capture-bs32.json.gz"
LAYERS, SEQUENCES, CONTEXT, WINDOW = 24, 32, 55_086, 128
HEADS, KV_HEADS, HEAD = 64, 8, 64
EXPERTS, CHOSEN = 32, 4


@pytest.fixture(scope="module", autouse=True)
def _alone() -> Iterator[None]:
    """Without the figures of others beside, which take as long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hta, "ask", lambda _: (None, ()))
        yield


@pytest.fixture(scope="module")
def capture(traces: Path) -> Trace:
    return read_trace(traces / CAPTURE)


@pytest.fixture(scope="module")
def decode(traces: Path) -> Trace:
    return read_trace(traces / DECODE)


@pytest.fixture(scope="module")
def found(decode: Trace, capture: Trace) -> Analysis:
    return analyze([decode], AnalysisOptions(captures=(capture,)))


@pytest.fixture(scope="module")
def graph(capture: Trace) -> Reference:
    (one,) = references(evidence_of(capture))
    return one


@pytest.fixture(scope="module")
def rows(oracle: Path) -> list[dict[str, Any]]:
    """The known figures of every op, those that are known to be wrong corrected from first principles."""
    out = []
    for row in json.loads((oracle / "op-work.json").read_text())[DECODE]["rows"]:
        row = dict(row)
        if row["op"].startswith("vllm::unified_attention"):  # half of the layers look back 128 tokens
            keys = (CONTEXT + SEQUENCES * WINDOW) / 2
            row["flops_per_call"] = 4 * HEADS * HEAD * keys
            row["bytes_per_call"] = 2 * SEQUENCES * HEADS * HEAD * 2 + 2 * keys * KV_HEADS * HEAD * 2
        elif row["op"] == "triton_poi_fused__to_copy_1":  # fp32 in, bf16 out
            row["bytes_per_call"] = 131_072 * 64 * (4 + 2)
        elif row["op"].startswith("triton_poi_fused_constant_pad_nd"):  # 2880 in, 3072 out
            row["bytes_per_call"] = 32 * (2880 + 3072) * 2
        elif row["op"].endswith(("unfused_up", "unfused_down")):  # a scale of 8 bits for 32 weights of 4 bits
            wide = 2 if row["op"].endswith("_up") else 1
            active = EXPERTS * (1 - (1 - CHOSEN / EXPERTS) ** SEQUENCES)
            row["bytes_per_call"] += active * wide * 3072 * 3072 / 32
            row["flops_per_call"] = 2 * SEQUENCES * CHOSEN * wide * 2880 * 2880  # what is padded is no work
        out.append(row)
    return out


def kernels(found: Analysis) -> pd.DataFrame:
    table = found.main.timeline.table
    table = table[table["kind"] == KERNEL]
    return table.assign(kernel_name=[found.main.timeline.trace.text(code) for code in table["name"].tolist()])


def test_a_capture_is_the_graph_it_captures(graph: Reference, decode: Trace) -> None:
    replayed = decode.kernels[decode.kernels["correlation"].duplicated(keep=False) & (decode.kernels["kind"] == KERNEL)]
    assert graph.name == "capture_32_FULL"
    assert graph.tokens == 32
    assert list(graph.names) == [decode.text(code) for code in replayed["name"].tolist()]
    assert len(graph.names) == 421
    assert graph.grids[1].tolist() == [32, 1, 1, 128, 1, 1]


def test_attention_brings_its_sizes_and_nothing_of_the_context(graph: Reference) -> None:
    attention = [one for name, one in zip(graph.names, graph.works, strict=True) if "unified_attention" in name]
    assert len(attention) == LAYERS
    for one in attention:
        assert one is not None
        assert (one.heads, one.kv_heads, one.head_dim) == (HEADS, KV_HEADS, HEAD)
        assert one.flops is None
        assert one.bytes is None


def test_helpers_have_the_work_that_grids_and_shapes_tell(graph: Reference) -> None:
    works = dict(zip(graph.names, graph.works, strict=True))
    sums, counts = works["reduce_segments"], works["_sum_bitmatrix_rows"]
    assert sums is not None
    assert counts is not None
    partial = SEQUENCES * HEADS * 8  # the grid of the attention kernel before it is 48 x 8 x 8: 8 segments
    assert sums.bytes == partial * (HEAD + 2) * 4 + SEQUENCES * HEADS * HEAD * 2
    assert sums.flops == 2 * partial * HEAD
    assert counts.bytes == SEQUENCES * 4 + 2 * EXPERTS * 4  # a word of bits per token; a count per expert, and its part
    assert counts.flops == 0
    assert sums.estimated


def test_nearly_all_of_the_time_is_known(found: Analysis) -> None:
    table = kernels(found)
    time = table["duration_ns"].to_numpy(np.float64)
    for figure in ("bytes", "flops"):
        assert time[table[figure].notna()].sum() / time.sum() >= 0.97, figure
    assert [note.detail for note in found.quality if note.code == "capture_used"] == [CAPTURE]
    assert not [note for note in found.quality if note.severity != "info"]


def test_totals_are_those_of_the_reference(found: Analysis, rows: list[dict[str, Any]]) -> None:
    table = kernels(found)
    for figure, key in (("bytes", "bytes_per_call"), ("flops", "flops_per_call")):
        expected = sum(row[key] * row["count"] for row in rows if row[key] is not None)
        assert float(table[figure].sum()) == pytest.approx(expected, rel=0.02), figure


def test_products_are_exact(found: Analysis, rows: list[dict[str, Any]]) -> None:
    table = kernels(found)
    exact = [row for row in rows if row["check"] == "exact"]
    assert len(exact) == 4
    for row in exact:
        (m, k), (n, _) = row["input_dims"][:2]
        own = table[(table["m"] == m) & (table["n"] == n) & (table["k"] == k)]
        assert len(own) == row["count"]
        assert np.allclose(own["flops"], row["flops_per_call"], rtol=1e-6)
        assert np.allclose(own["bytes"], row["bytes_per_call"], rtol=1e-6)


def test_experts_are_a_range_around_the_reference(found: Analysis, rows: list[dict[str, Any]]) -> None:
    table = kernels(found)
    experts = table[table["kernel_name"].str.startswith("_matmul_ogs")]
    known = [row for row in rows if row["op"].endswith(("unfused_up", "unfused_down"))]
    expected = sum(row["bytes_per_call"] * row["count"] for row in known)
    assert float(experts["bytes_min"].sum()) < expected
    assert float(experts["bytes"].sum()) == pytest.approx(expected, rel=0.02)


def test_a_replay_in_another_order_gets_nothing_that_is_not_its_own(
    decode: Trace, capture: Trace, found: Analysis
) -> None:
    """Products lost, twice and exchanged with others: what is known of a kernel is what was known of it before."""
    table = decode.kernels
    products = [i for i, code in enumerate(table["name"].tolist()) if decode.text(code).startswith("Cijk")]
    order = list(range(len(table)))
    late, middle, early = products[60], products[31], products[9]
    order[late], order[late + 4] = order[late + 4], order[late]
    order.insert(middle, middle)
    del order[early]
    changed = table.iloc[order].reset_index(drop=True)
    changed["start_ns"] = table["start_ns"].to_numpy()
    after = kernels(analyze([replace(decode, kernels=changed)], AnalysisOptions(captures=(capture,))))
    before = kernels(found)
    matched = after[after["source"] == "graph-match"]
    own = before.set_index("kernel").loc[np.array(order)[matched["kernel"].to_numpy()]]
    assert len(matched) > 0.9 * len(before[before["source"] == "graph-match"])
    assert np.array_equal(matched["flops"], own["flops"], equal_nan=True)
    assert np.array_equal(matched["bytes"], own["bytes"], equal_nan=True)


def unnamed(capture: Trace) -> Trace:
    """The capture as CUDA would have recorded it: its launches do not say what they launch."""
    nothing = dict.fromkeys(("launched", "grid", "block"), np.int32(MISSING))
    return replace(capture, launches=capture.launches.assign(**nothing))


def test_a_capture_without_names_tells_the_same(decode: Trace, capture: Trace, found: Analysis) -> None:
    before, after = kernels(found), kernels(analyze([decode], AnalysisOptions(captures=(unnamed(capture),))))
    matched = (after["source"] == "graph-match").to_numpy()
    assert matched.sum() > 0.9 * (before["source"] == "graph-match").sum()
    for figure in ("flops", "bytes", "m", "heads"):
        assert np.array_equal(after[figure][matched], before[figure][matched], equal_nan=True), figure


def test_a_capture_without_names_has_as_many_kernels_in_the_same_order(capture: Trace, graph: Reference) -> None:
    evidence = evidence_of(unnamed(capture))
    assert references(evidence) == []
    (part,) = evidence.parts
    names = list(graph.names)
    own = with_names(evidence, part, names, graph.grids)
    assert own is not None
    assert own.tokens == 32
    assert with_names(evidence, part, names[1:], graph.grids[1:]) is None
    assert with_names(evidence, part, names[1:] + names[:1], graph.grids) is None
    router = names.index(next(name for name in names if "MT16x16x256" in name), 100)
    output = max(i for i in range(router) if names[i].startswith("Cijk"))
    names[router], names[output] = names[output], names[router]
    changed = with_names(evidence, part, names, graph.grids)
    assert changed is not None
    assert changed.works[router] is None
    assert changed.works[output] is None
    rest = [i for i in range(len(names)) if i not in (router, output)]
    assert [changed.works[i] for i in rest] == [own.works[i] for i in rest]


def test_the_capture_of_another_model_is_told_and_not_used(decode: Trace, traces: Path) -> None:
    other = read_trace(traces / SGLANG_CAPTURE)
    (of_other,) = references(evidence_of(other))
    assert (of_other.name, of_other.tokens) == ("capture_32_DECODE", 32)
    told = analyze([decode], AnalysisOptions(captures=(other,)))
    (note,) = [note for note in told.quality if note.code == "capture_not_aligned"]
    assert note.severity == "warning"
    assert note.detail.startswith(SGLANG_CAPTURE)
    assert "graph-match" not in set(kernels(told)["source"])


def test_a_trace_without_shapes_is_no_capture(decode: Trace) -> None:
    other = replace(decode, source=replace(decode.source, sha256="0" * 64))
    with pytest.raises(InputError, match="holds no captured graph"):
        analyze([decode], AnalysisOptions(captures=(other,)))


RUN = Scenario(model="llama-3.2-1b", gpu="h100-sxm-80gb", prompt=300, output=3, batch=4)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, dict[str, Any], Trace]:
    """A run that replays graphs, without shapes and words on the model; what is true of it; the same run, eager."""
    folder = tmp_path_factory.mktemp("captures")
    bare = simulate(
        replace(RUN, mode="graph"), folder / "graph.json", passes, variant=Variant(shapes=False, ops=False)
    )[0]
    eager = simulate(RUN, folder / "eager.json", passes)[0]
    graph = read_trace(bare.trace)
    block = {key: value for key, value in (graph.metadata.collector or {}).items() if key != "model"}
    graph = replace(graph, metadata=replace(graph.metadata, collector=block))
    return graph, json.loads(Path(bare.truth).read_text()), read_trace(eager.trace)


def test_an_eager_run_beside_tells_the_work_of_a_replayed_one(
    simulated: tuple[Trace, dict[str, Any], Trace],
) -> None:
    graph, truth, eager = simulated
    told = analyze([graph], AnalysisOptions(captures=(eager,)))
    table = kernels(told)
    decode = table[(table["phase"] == "decode") & (table["source"] == "graph-match")]
    total = {what: decode.groupby("kernel_name")[what].sum() for what in ("flops", "bytes")}
    known = [row for row in truth["kernels"] if row["phase"] == "decode" and row["name"] in total["flops"].index]
    assert len(known) >= 5
    for row in known:
        for what in ("flops", "bytes"):
            if row[what] is not None:
                assert float(total[what][row["name"]]) == pytest.approx(row[what], rel=0.05), (row["name"], what)
    time = table[table["phase"] == "decode"]["duration_ns"].sum()
    assert decode["duration_ns"].sum() / time > 0.9


def test_eager_steps_of_the_trace_itself_tell_what_siblings_do_not(
    simulated: tuple[Trace, dict[str, Any], Trace],
) -> None:
    """Two windows of one run, the first without graphs."""
    graph, truth, eager = simulated
    later = replace(graph, metadata=replace(graph.metadata, base_time_ns=eager.metadata.base_time_ns + 10**12))
    told = analyze([joined([eager, later])])
    table = kernels(told)
    replayed = table[(table["phase"] == "decode") & (table["op"] < 0)]
    assert {"graph-match", "siblings"} <= set(replayed["source"])
    for what in ("flops", "bytes"):
        total = replayed.groupby("kernel_name")[what].sum(min_count=1)
        known = [row for row in truth["kernels"] if row["phase"] == "decode" and row[what] is not None]
        for row in known:
            if not np.isnan(total[row["name"]]):
                assert float(total[row["name"]]) == pytest.approx(row[what], rel=0.05), (row["name"], what)
    attends = replayed[(replayed["category"] == "attention") & (replayed["source"] == "graph-match")]
    assert len(attends)
    assert attends["kv_bytes"].notna().all()


def test_a_padded_replay_has_the_work_of_the_captured_size(tmp_path: Path) -> None:
    """Six sequences in a graph for eight; the output layer stands beside the graph and takes six."""
    six, eight = replace(RUN, batch=6, mode="graph", capture_sizes=(4, 8, 16)), replace(RUN, batch=8)
    bare = simulate(six, tmp_path / "graph.json", passes, variant=Variant(shapes=False, ops=False))[0]
    truth = json.loads(Path(bare.truth).read_text())
    eager = read_trace(simulate(eight, tmp_path / "eager.json", passes)[0].trace)
    graph = read_trace(bare.trace)
    block = {key: value for key, value in (graph.metadata.collector or {}).items() if key != "model"}
    graph = replace(graph, metadata=replace(graph.metadata, collector=block))
    table = kernels(analyze([graph], AnalysisOptions(captures=(eager,))))
    decode = table[(table["phase"] == "decode") & (table["source"] == "graph-match")]
    assert set(decode.loc[decode["m"] > 0, "m"]) == {8}
    total = {what: decode.groupby("kernel_name")[what].sum() for what in ("flops", "bytes")}
    norms = [row for row in truth["kernels"] if row["phase"] == "decode" and "rms_norm" in row["name"]]
    assert norms
    for row in norms:
        for what in ("flops", "bytes"):
            if row["name"] in total[what].index:
                assert float(total[what][row["name"]]) == pytest.approx(row[what], rel=0.05)


def test_a_step_of_another_size_is_not_taken(simulated: tuple[Trace, dict[str, Any], Trace], tmp_path: Path) -> None:
    graph, _, _ = simulated
    other = read_trace(simulate(replace(RUN, batch=16), tmp_path / "eager.json", passes)[0].trace)
    told = analyze([graph], AnalysisOptions(captures=(other,)))
    assert "graph-match" not in set(kernels(told)[kernels(told)["phase"] == "decode"]["source"])
    assert [note.code for note in told.quality if note.code.startswith("capture")] == ["capture_not_aligned"]


def test_equal_sequences_are_one_reference(simulated: tuple[Trace, dict[str, Any], Trace]) -> None:
    _, _, eager = simulated
    found: list[Reference] = references(evidence_of(eager))
    assert len({(one.tokens, one.names, one.grids.tobytes()) for one in found}) == len(found)

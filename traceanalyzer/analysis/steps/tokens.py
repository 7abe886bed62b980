"""What the shapes of a step's kernels say: how many tokens it ran, how many got logits, and over which context.

    layer GEMM M        tokens of the step: the M that most weight elements are multiplied with, lm_head left out
    lm_head M           rows that got logits: sequences sampled (prefill: one per sequence), or all tokens
    attention q, k, B   query and key lengths; eager attention is a pair of batched GEMMs with n and k swapped
    KV write, rope      grid.x is the number of tokens in the engines' own kernels, where no GEMM shape is known

What could be wrong with it: a rotary table built with a batched GEMM, a router, a padded batch. Each is one M among
many, so the weighted mode carries them; expert GEMMs under routing may split M and are then outvoted by dense layers.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from traceanalyzer.analysis.activity import Activity
from traceanalyzer.analysis.kernels import HELPER_ROLES
from traceanalyzer.analysis.steps.model import Bools, Ints
from traceanalyzer.analysis.steps.overlap import lanes
from traceanalyzer.analysis.steps.submission import Submission
from traceanalyzer.trace.tables import MISSING, Trace

GEMM = ("gemm", "gemv")
LAYER = ("gemm", "gemv", "attention", "kv_cache", "moe", "ssm")
"""Categories that only a layer runs."""
HEAD_WIDER = 1.2
"""How much wider than any layer's GEMM the lm_head must be where the vocabulary is not known."""
_MIN_WEIGHT = 16
"""A GEMM dimension below this is a helper, not a linear layer."""
_CALLS = (
    "attention", "kv_writes", "gemms", "convs", "layer_rows", "attention_rows", "kernels", "eager_attention",
    "attention_ns",
)  # fmt: skip
_COLUMNS = ("m", "n", "k", "batch", "q_len", "kv_len", "heads")


def step_rows(
    trace: Trace, activity: Activity, work: pd.DataFrame, category: pd.Categorical, submission: Submission
) -> pd.DataFrame:
    """One row per executed call, in order of submission: what every later question about steps is asked of.

    Columns: row (in Activity.table), device, stream, thread, time_ns, start_ns, name, category and role (categorical),
    duration_ns, grid_x, grid_y, call and the dimensions m, n, k, batch, q_len, kv_len, heads (MISSING unknown). A CPU
    op that was recorded in several pieces is one row.
    """
    table = activity.table
    start = table["start_ns"].to_numpy(np.int64)
    time = np.where(submission.known, submission.time_ns, start)
    order = np.lexsort((start, time))
    call = table["call"].to_numpy(np.int64)[order]
    order = order[~pd.Series(call).duplicated().to_numpy()]

    def taken(column: pd.Series) -> Ints:
        return column.to_numpy(np.int64)[order]

    return pd.DataFrame(
        {
            "row": order,
            "device": taken(table["device"]),
            "stream": taken(table["stream"]),
            "thread": submission.thread[order],
            "time_ns": time[order],
            "start_ns": start[order],
            "name": taken(table["name"]),
            "category": category[order],
            "role": pd.Categorical(work["role"])[order],
            "duration_ns": taken(table["duration_ns"]),
            "grid_x": _grid(trace, taken(table["kernel"]), "grid_x"),
            "grid_y": _grid(trace, taken(table["kernel"]), "grid_y"),
            "call": taken(table["call"]),
            **{column: taken(work[column]) for column in _COLUMNS},
        },
        copy=False,
    )


def _grid(trace: Trace, kernel: Ints, axis: str) -> Ints:
    out = np.full(len(kernel), MISSING, np.int64)
    recorded = kernel >= 0
    out[recorded] = trace.kernels[axis].to_numpy(np.int64)[kernel[recorded]]
    return out


def lm_head(rows: pd.DataFrame, group: Ints, vocabularies: tuple[int, ...]) -> Bools:
    """Which rows are the projection onto the vocabulary: at most one per step, its last GEMM of that width.

    Without a known vocabulary: the widest GEMM of a step, where it runs once and every other shape at least twice.
    """
    out = np.zeros(len(rows), np.bool_)
    gemm = _linears(rows, group)
    if not len(gemm):
        return out
    named = gemm[gemm["n"].isin(vocabularies)]
    if len(named):
        out[named.groupby("group")["position"].max().to_numpy()] = True
        return out
    shapes = gemm.groupby(["group", "n", "k"])["position"].agg(["size", "max"]).reset_index()
    shapes = shapes.sort_values(["group", "n", "size"], ascending=[True, True, False], kind="stable")
    top = shapes.drop_duplicates("group", keep="last").set_index("group")
    others = shapes[shapes.duplicated("group", keep="last")].groupby("group").agg({"size": "min", "n": "max"})
    others = others.reindex(top.index).fillna(0)
    chosen = (top["size"] == 1) & (others["size"] >= 2) & (top["n"] >= HEAD_WIDER * others["n"])
    out[top.loc[chosen, "max"].to_numpy()] = True
    return out


def _linears(rows: pd.DataFrame, group: Ints) -> pd.DataFrame:
    """GEMM rows of linear layers (not batched, both weight dimensions real) with group and position."""
    keep = (
        rows["category"].isin(GEMM).to_numpy()
        & (rows["m"].to_numpy() > 0)
        & (rows["n"].to_numpy() >= _MIN_WEIGHT)
        & (rows["k"].to_numpy() >= _MIN_WEIGHT)
        & (rows["batch"].to_numpy() <= 1)
        & (group >= 0)
    )
    frame = rows.loc[keep, ["m", "n", "k"]]
    return frame.assign(group=group[keep], position=np.flatnonzero(keep))


def facts(rows: pd.DataFrame, group: Ints, vocabularies: tuple[int, ...], groups: int) -> dict[str, Ints]:
    """What shapes and categories say of each group: columns of length `groups`, MISSING where unknown.

    tokens, logits, q, k, batch, written (tokens by a KV write's grid); calls of attention, kv_writes, gemms, convs,
    samples (after the lm_head), kernels, layer_rows and of these attention_rows, eager_attention; attention_ns; layers.

    A group on several devices is measured on each of them. Its calls add up; its tokens are not split, so the most of
    any device count. Its layers are those of one device where several run attention at a time (each holds a part of
    every layer), and add up where one does after the other (each holds some of the layers). Micro-batches on streams of
    one device (`overlap`) each run all its layers; their tokens and sequences add up.
    """
    device = rows["device"].to_numpy(np.int64)
    devices, index = np.unique(device, return_inverse=True)
    place = np.where(group >= 0, group * len(devices) + index, MISSING)
    lane = lanes(rows, place)
    most = int(lane.max(initial=0)) + 1
    units, unit = np.unique(np.where(place >= 0, place * most + lane, MISSING), return_inverse=True)
    first = int(np.searchsorted(units, 0))  # after the one for rows of no group
    unit, places = unit - first, units[first:] // most
    of = places // max(len(devices), 1)
    head = lm_head(rows, unit, vocabularies)
    each = _facts(rows, unit, head, len(of))
    if most > 1:
        for name in ("tokens", "logits", "written", "batch"):
            each[name] = _together(each[name], places)
    out: dict[str, Ints] = {}
    for name in ("tokens", "logits", "written"):
        out[name] = np.full(groups, MISSING, np.int64)
        np.maximum.at(out[name], of, each[name])
    busiest = np.lexsort((-each["layer_rows"], each["q"] <= 0, of))
    chosen = busiest[np.diff(of[busiest], prepend=MISSING) != 0]
    for name in ("q", "k", "batch"):
        out[name] = np.full(groups, MISSING, np.int64)
        out[name][of[chosen]] = each[name][chosen]
    for name in _CALLS:
        out[name] = np.zeros(groups, np.int64)
        np.add.at(out[name], of, each[name])
    after = (rows["category"] == "sampling").to_numpy() & (group >= 0) & _after_head(group, head, groups)
    out["samples"] = np.bincount(group[after], minlength=groups)
    out["layers"] = _over_devices(_layers(each), of, _at_a_time(rows, unit, of, groups), groups)
    return out


def _together(values: Ints, places: Ints) -> Ints:
    """The sum of what is known in each place, for each of its parts; MISSING where nothing is."""
    _, place = np.unique(places, return_inverse=True)
    total = np.bincount(place, np.where(values > 0, values, 0)).astype(np.int64)[place]
    return np.where(total > 0, total, MISSING)


def _facts(rows: pd.DataFrame, group: Ints, head: Bools, groups: int) -> dict[str, Ints]:
    """Of each group on one device: the columns of `facts` but for layers and samples."""
    linear = _linears(rows, np.where(head, MISSING, group))
    attention = _attention(rows, group)
    category, role = rows["category"], rows["role"]
    write = (category == "kv_cache").to_numpy()
    writes = rows.loc[write & (rows["grid_x"] > 0).to_numpy() & (group >= 0), ["grid_x"]]
    writes = writes.assign(group=group[writes.index])
    measured: dict[str, pd.Series] = {
        "tokens": _mode(linear, "m", linear["n"] * linear["k"]),
        "logits": rows.loc[head, ["m"]].assign(group=group[head]).groupby("group")["m"].max(),
        "written": _mode(writes, "grid_x", pd.Series(1, index=writes.index)),
        **{column: attention[column] for column in ("q", "k", "batch")},
    }
    none = role.isin([name for name in role.cat.categories if name in HELPER_ROLES or name.startswith("backward")])
    counted = {
        "attention": ((category == "attention") & ~none).to_numpy(),
        "kv_writes": write,
        "gemms": category.isin(GEMM).to_numpy(),
        "convs": (category == "conv").to_numpy(),
        "layer_rows": category.isin(LAYER).to_numpy(),
        "attention_rows": category.isin(("attention", "kv_cache")).to_numpy(),
        "kernels": np.ones(len(rows), np.bool_),
    }
    out = {name: _aligned(series, groups, MISSING) for name, series in measured.items()}
    out |= {name: np.bincount(group[of & (group >= 0)], minlength=groups) for name, of in counted.items()}
    out["eager_attention"] = _aligned(attention["pairs"], groups, 0)
    attends = (category == "attention").to_numpy() & (group >= 0)
    spent = np.bincount(group[attends], rows["duration_ns"].to_numpy(np.float64)[attends], minlength=groups)
    out["attention_ns"] = spent.astype(np.int64)
    out["q"] = _unfolded(out["q"], out["batch"], out["tokens"])
    return out


def _over_devices(layers: Ints, of: Ints, at_a_time: Bools, groups: int) -> Ints:
    """Layers of each group from those on each of its devices."""
    total, most = np.zeros(groups, np.int64), np.zeros(groups, np.int64)
    np.add.at(total, of, layers)
    np.maximum.at(most, of, layers)
    return np.where(at_a_time, most, total)


def _at_a_time(rows: pd.DataFrame, unit: Ints, of: Ints, groups: int) -> Bools:
    """Groups whose attention runs on several devices at once: the spans of their devices overlap."""
    batched = rows["category"].isin(GEMM) & (rows["batch"] > 1)
    here = (rows["category"].isin(("attention", "kv_cache")) | batched).to_numpy() & (unit >= 0)
    start, end = np.full(len(of), np.iinfo(np.int64).max), np.full(len(of), np.iinfo(np.int64).min)
    begins = rows["start_ns"].to_numpy(np.int64)[here]
    np.minimum.at(start, unit[here], begins)
    np.maximum.at(end, unit[here], begins + rows["duration_ns"].to_numpy(np.int64)[here])
    order = np.lexsort((start, of))
    overlapping = (of[order][1:] == of[order][:-1]) & (start[order][1:] < end[order][:-1])
    out = np.zeros(groups, np.bool_)
    out[of[order][1:][overlapping]] = True
    return out


def _unfolded(q: Ints, batch: Ints, tokens: Ints) -> Ints:
    """Query lengths as the model sees them: attention may fold the query heads of a KV head into q."""
    folded = (batch > 0) & (tokens > 0) & (batch * q > tokens) & (batch * q % np.maximum(tokens, 1) == 0)
    folded &= tokens % np.maximum(batch, 1) == 0
    return np.where(folded, tokens // np.maximum(batch, 1), q)


def _aligned(series: pd.Series, groups: int, absent: int) -> Ints:
    """A per-group series as an array over all groups."""
    return series.reindex(range(groups)).fillna(absent).to_numpy(np.int64)


def _after_head(group: Ints, head: Bools, groups: int) -> Bools:
    """Which rows come after their step's lm_head."""
    first = np.full(groups + 1, len(group), np.int64)  # the last is for rows without a step
    found = np.flatnonzero(head)
    np.minimum.at(first, group[found], found)
    after: Bools = np.arange(len(group)) > first[group]
    return after


def _layers(counts: dict[str, Ints]) -> Ints:
    """Layers run: attention calls, or KV writes, whichever is fewer where both are seen (K and V written apart)."""
    attention = np.where(counts["attention"] > 0, counts["attention"], counts["eager_attention"])
    writes = counts["kv_writes"]
    return np.where((attention > 0) & (writes > 0), np.minimum(attention, writes), np.maximum(attention, writes))


def _mode(frame: pd.DataFrame, column: str, weight: pd.Series) -> pd.Series:
    """Per group, the value of a column that carries the most weight (the larger one on a tie)."""
    total = weight.astype(np.float64).groupby([frame["group"], frame[column]]).sum().reset_index(name="weight")
    total = total.sort_values(["group", "weight", column], kind="stable")
    return total.drop_duplicates("group", keep="last").set_index("group")[column]


def _attention(rows: pd.DataFrame, group: Ints) -> pd.DataFrame:
    """Per group: q, k and batch of its attention; of layers with different windows, the one that sees most."""
    told = (rows["kv_len"].to_numpy() > 0) | (rows["batch"].to_numpy() > 0)  # else q_len is the tokens of all sequences
    keep = (rows["category"] == "attention").to_numpy() & (rows["q_len"].to_numpy() > 0) & told & (group >= 0)
    fused = rows.loc[keep, ["q_len", "kv_len", "batch", "duration_ns"]].set_axis(
        ["q", "k", "batch", "duration_ns"], axis=1
    )
    eager = _eager_attention(rows, group)
    calls = pd.concat([fused.assign(group=group[keep]), eager], ignore_index=True)
    usual = _mode(calls, "q", calls["duration_ns"] + 1)
    calls = calls[calls["q"] == calls["group"].map(usual)]
    widest = calls.sort_values(["group", "k"], kind="stable").drop_duplicates("group", keep="last").set_index("group")
    out = widest[["q", "k", "batch"]].astype(np.float64)
    out["pairs"] = eager.groupby("group").size().reindex(out.index).fillna(0)
    return out


def _eager_attention(rows: pd.DataFrame, group: Ints) -> pd.DataFrame:
    """Attention made of two batched GEMMs: [B, q, d] x [B, d, k], then [B, q, k] x [B, k, d].

    The first of each pair is returned; `batch` is MISSING, since heads and sequences are one dimension there.
    """
    keep = rows["category"].isin(GEMM).to_numpy() & (rows["batch"].to_numpy() > 1) & (group >= 0)
    frame = rows.loc[keep, ["m", "n", "k", "batch", "duration_ns"]].assign(group=group[keep])
    frame = frame.sort_values("group", kind="stable", ignore_index=True)
    following = frame.shift(-1)
    pair = (
        (frame["m"] == following["m"])
        & (frame["n"] == following["k"])
        & (frame["k"] == following["n"])
        & (frame["batch"] == following["batch"])
        & (frame["group"] == following["group"])
    ).to_numpy()
    first = frame[pair & ~_second_of_pair(pair)]
    return pd.DataFrame(
        {
            "group": first["group"],
            "q": first["m"],
            "k": first["n"],
            "batch": MISSING,
            "duration_ns": first["duration_ns"],
        }
    )


def _second_of_pair(pair: Bools) -> Bools:
    """The odd ones of a run of matches: with d = k every second GEMM would pair with the next layer's first."""
    starts = np.flatnonzero(np.diff(pair.astype(np.int8), prepend=0) == 1)
    run_start = np.zeros(len(pair), np.int64)
    run_start[starts] = starts
    offset = np.arange(len(pair)) - np.maximum.accumulate(run_start)
    odd: Bools = pair & (offset % 2 == 1)
    return odd

"""What a key tells of the text under it: secrets go whatever they look like, and what a report needs stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.share.test_redact import event, redacted, trace

WORD = "Tr0ub4dorXyz"


@pytest.mark.parametrize(
    "args",
    [
        {"env": {"DB_PASSWORD": WORD}}, {"env": {"PLAIN": WORD}}, {"environ": {"A": {"B": [WORD]}}},
        {"environment": [f"X={WORD}", WORD]}, {"ENV": WORD}, {"env_vars": {"X": WORD}}, {"os.environ": {"X": WORD}},
        {"api_key": WORD}, {"apiKey": WORD}, {"api-key": WORD}, {"HF_TOKEN": WORD}, {"password": WORD},
        {"AWS_SECRET_ACCESS_KEY": WORD}, {"WANDB_API_KEY": WORD}, {"secret": WORD}, {"my_pwd": WORD},
        {"cookie": WORD}, {"credentials": {"a": [WORD, {"b": WORD}]}}, {"authorization": WORD}, {"passphrase": WORD},
        {"said": ["HF_TOKEN", WORD]}, {"said": [["HF_TOKEN", WORD]]}, {"said": [1, ["--api-key", [WORD]]]},
        {"vars": [{"name": "DB_PASSWORD", "value": WORD}]}, {"vars": [{"value": WORD, "key": "HF_TOKEN"}]},
        {"deep": [{"env": {"X": WORD}}]}, {"x": {"password": {"y": WORD}}}, {"token": [WORD, WORD]},
        {"Concrete Inputs": ["password", WORD]}, {"token": "12345678901"},
        {"HF TOKEN": WORD}, {"privateKey": WORD}, {"HF_TOKEN_2": WORD},
    ],
)  # fmt: skip
@pytest.mark.parametrize("kineto", [True, False])
def test_what_a_key_tells_to_be_secret_is(tmp_path: Path, args: dict[str, Any], kineto: bool) -> None:
    said = event("cpu_op", "aten::mm", **args)
    document = trace(said if kineto else {"args": said.pop("args"), **said}, distributedInfo={"backend": args})
    found, content = redacted(tmp_path, document)
    assert WORD not in found
    assert "12345678901" not in found
    assert redacted(tmp_path, content)[1]["traceEvents"] == content["traceEvents"]


def test_numbers_and_words_under_other_keys_stay(tmp_path: Path) -> None:
    args = {"max_tokens": "many", "token": 5, "passes": "two", "author": "nobody", "tokens": ["a", "b"], "auth": "17",
            "env": {"N": 3}}  # fmt: skip
    _, content = redacted(tmp_path, trace(event("cpu_op", "aten::mm", **args)))
    assert content["traceEvents"][-1]["args"] == args


@pytest.mark.parametrize(
    "key", ["id", "s", "kind", "direction", "backend", "kernel", "Kernel", "kernel_name", "trace_id", "dtype", "grid",
            "Input type", "Collective name", "ph_", "bp", "cuda_sync_kind", "Process Group Ranks", "Trace name"],
)  # fmt: skip
def test_sentences_stand_under_no_key(tmp_path: Path, key: str) -> None:
    document = trace(event("cpu_op", "aten::mm", **{key: "John Doe asked", "more": [{key: ["John Doe asked"]}]}))
    assert "John" not in redacted(tmp_path, document)[0]


def test_words_of_compilers_and_recorders_stay(tmp_path: Path) -> None:
    args = {"kernel": "void at::f<4, float>(int, at::g<2>) const", "kind": "Dispatch Kernel",
            "direction": "HOST_TO_DEVICE",
            "backend": "nccl", "grid": "grid(100,)", "Input type": ["c10::BFloat16", "unsigned char", "long int"],
            "kernel_hash": "chie4if7af343oyphzdajhazquextcbypid3dsq62l7feujdkdty", "kernel_name": "triton_poi_fused_0",
            "trace_id": "637D557F7E6443CB87E10F28AA5D5CFD", "id": "0x7f1234",
            "Process Group Ranks": "[0, 1]"}  # fmt: skip
    _, content = redacted(tmp_path, trace(event("cpu_op", "aten::mm", **args)))
    assert content["traceEvents"][-1]["args"] == args


@pytest.mark.parametrize("letter", ["s", "f", "t"])
def test_arrows_are_called_as_pytorch_calls_them(tmp_path: Path, letter: str) -> None:
    arrows = [
        {"ph": letter, "id": 7, "pid": 1, "tid": 1, "ts": 5, "cat": category, "name": name}
        for category, name in (("ac2g", "ac2g"), ("fwdbwd", "fwdbwd"), ("async", "launch"), ("ac2g", "John"),
                               ("kernel", "John"))
    ]  # fmt: skip
    _, content = redacted(tmp_path, trace(*arrows, event("ac2g", "John"), {"name": "John", **arrows[0]}))
    names = [one["name"] for one in content["traceEvents"][3:]]
    assert names[:3] == ["ac2g", "fwdbwd", "launch"]
    assert "John" not in names


def test_of_groups_and_devices_only_known_facts_stay(tmp_path: Path) -> None:
    group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": 2, "ranks": [0, 1]}
    device = {"id": 0, "name": "NVIDIA H100", "numSms": 132}
    document = trace(
        distributedInfo={"rank": 0, "pg_config": [{**group, "hosts": ["nodea", "nodeb"], "master": "nodea"}, "nodea"]},
        deviceProperties=[{**device, "uuid": "GPU-1f7a"}],
    )
    found, content = redacted(tmp_path, document)
    assert "nodea" not in found
    assert "GPU-1f7a" not in found
    assert content["distributedInfo"]["pg_config"][0] == group
    assert {key: content["deviceProperties"][0][key] for key in device} == device
    assert redacted(tmp_path, content)[1]["deviceProperties"] == content["deviceProperties"]


@pytest.mark.parametrize("secret", ["9f86d081884c7d659a2feaa0c55ad015", "Zx81kLm20PqR93sTuV64wXyZ05aBcD72", "a1" * 20])
def test_long_runs_of_letters_and_digits_are_keys(tmp_path: Path, secret: str) -> None:
    document = trace(
        event("cpu_op", "aten::mm", note=secret, list=[secret, {secret: 1}], said=f"x:{secret}"),
        event("weird", secret),
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": secret}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": secret}},
    )  # fmt: skip
    assert secret not in redacted(tmp_path, document)[0]

"""Words of this field, of which names of kernels and ops consist: a user or a host may be called like one.

Replacing such a word in a kernel's name would change what the report takes the kernel for, so a name that is one of
them, or has one as a part, is looked for only where people and libraries write. What could be wrong: a word that is not
listed and that a kernel's name holds; then the report of the redacted file may say another role for it.
"""

from __future__ import annotations

import re

_IDENTIFIER = re.compile(r"[A-Za-z0-9_]+", re.ASCII)
_WORDS = frozenset((
    "accumulate", "activation", "addition", "algorithm", "allgather", "allreduce", "alltoall", "arithmetic",
    "asynchronous", "batchnorm", "bernoulli", "blackwell", "ampere", "hopper", "turing", "volta", "broadcast",
    "bucketize", "calculator", "classifier", "collective", "combination", "combinations", "communication", "compressed",
    "concatenate", "consecutive", "contiguous", "convolution", "criterion", "cumulative", "decompress", "depthwise",
    "dequantize", "dispatcher", "distributed", "divisible", "efficient", "embedding", "embeddings", "exclusive",
    "exponential", "factorial", "fractional", "frobenius", "functional", "generation", "generator", "geometric",
    "gradients", "groupnorm", "hardshrink", "hardsigmoid", "hardswish", "heaviside", "histogram", "householder",
    "inclusive", "inference", "initialize", "instancenorm", "interleave", "interleaved", "interpolate", "logaddexp",
    "logsumexp", "magnitude", "materialize", "multihead", "multinomial", "multiplies", "multiprocessor", "normalize",
    "normalization", "occupancy", "operation", "optimized", "optimizer", "overlapping", "pagedattn", "parallel",
    "partition", "permutation", "permute", "persistent", "pipeline", "pointwise", "polynomial", "postprocess",
    "precision", "prediction", "preprocess", "projection", "propagate", "reciprocal", "reduction", "reflection",
    "remainder", "replication", "reshape", "residual", "reversible", "rotary", "rowwise", "columnwise", "sampling",
    "scheduler", "searchsorted", "serialized", "serving", "softplus", "softshrink", "speculative", "squeeze",
    "strategy", "structured", "subtract", "summation", "synchronize", "threshold", "transform", "transformer",
    "transformers", "transpose", "triangular", "trilinear", "unflatten", "unsqueeze", "upsample", "validation",
    "workspace", "training", "streaming", "dispatch", "combine", "routing", "experts", "gating",
))  # fmt: skip
_ROOTS = re.compile(
    r"gemm|gemv|kernel|tensor|cuda|cublas|cudnn|cutlass|nccl|hipblas|rocblas|triton|attention|attn|norm(?:alize)?\Z"
    r"|layernorm|rmsnorm|softmax|sigmoid|quanti[sz]|backward|forward|elementwise|vectorized|functor|iterator"
    r"|reduc(?:e|ing)\Z|reduction|transpos|convolution|decode|prefill|memcpy|memset"
)
_NUMBERED = re.compile(
    r"(?:sm|gfx|mi|rtx|gb|[abhltv])\d{2,4}[a-z]{0,3}"
    r"|(?:u?int|[suif]|fp|bf|tf|float|bfloat|half|e\dm)\d{1,3}[a-z]{0,4}|e\dm\d\w{0,4}|\d+(?:x\d+)+\w{0,4}"
    r"|(?:conv|rank|step|stage|layer|stream|block|warp|tile|dim|head|topk|version|kv|tp|pp|dp|ep)\d{1,4}"
)


def is_term(name: str) -> bool:
    """Whether a name could be a part of a kernel's name: an identifier that holds a word of the field."""
    if not _IDENTIFIER.fullmatch(name):
        return False
    return any(
        part in _WORDS or _ROOTS.search(part) is not None or _NUMBERED.fullmatch(part) is not None
        for part in name.lower().split("_")
    )

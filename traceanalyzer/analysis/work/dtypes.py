"""Recorded type names: their size, their compute dtype, and what type an elementwise op answers with.

The profiler writes C++ type names ("c10::BFloat16", "long int", older versions "long"). A name that is not in the
table is unknown: sizes are never guessed. The promotion rule is PyTorch's: tensors with dimensions decide, a
zero-dimensional tensor or a Python number only when its category (bool < int < float < complex) is higher.
"""

from __future__ import annotations

from dataclasses import dataclass

BOOL, INT, FLOAT, COMPLEX = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Dtype:
    """`bytes` per element, `word` the compute dtype (fp32, bf16, ...; None where no peak is defined), `category`.

    `values` are the numbers that one element holds: two in the packed 4-bit type.
    """

    bytes: int
    word: str | None
    category: int
    values: int = 1


FP64 = Dtype(8, "fp64", FLOAT)
FP32 = Dtype(4, "fp32", FLOAT)
INT64 = Dtype(8, None, INT)
BOOLEAN = Dtype(1, None, BOOL)

_INT32 = Dtype(4, None, INT)
_INT16 = Dtype(2, None, INT)
_INT8 = Dtype(1, "int8", INT)
_FP16 = Dtype(2, "fp16", FLOAT)
_BF16 = Dtype(2, "bf16", FLOAT)
_FP8 = Dtype(1, "fp8", FLOAT)

_RECORDED: dict[str, Dtype] = {
    "float": FP32,
    "c10::Float": FP32,
    "double": FP64,
    "c10::Half": _FP16,
    "c10::BFloat16": _BF16,
    "int": _INT32,
    "unsigned int": _INT32,
    "long int": INT64,
    "long": INT64,
    "long long": INT64,
    "unsigned long": INT64,
    "short": _INT16,
    "short int": _INT16,
    "unsigned short": _INT16,
    "signed char": _INT8,
    "char": _INT8,
    "unsigned char": Dtype(1, None, INT),
    "bool": BOOLEAN,
    "c10::Float8_e4m3fn": _FP8,
    "c10::Float8_e4m3fnuz": _FP8,
    "c10::Float8_e5m2": _FP8,
    "c10::Float8_e5m2fnuz": _FP8,
    "c10::Float8_e8m0fnu": Dtype(1, None, FLOAT),
    "c10::Float4_e2m1fn_x2": Dtype(1, "fp4", FLOAT, values=2),
    "c10::complex<c10::Half>": Dtype(4, None, COMPLEX),
    "c10::complex<float>": Dtype(8, None, COMPLEX),
    "c10::complex<double>": Dtype(16, None, COMPLEX),
    "c10::qint8": _INT8,
    "c10::quint8": Dtype(1, "int8", INT),
    "c10::qint32": _INT32,
}

_BY_SCALAR_TYPE: dict[str, Dtype] = {
    "0": Dtype(1, None, INT),
    "1": _INT8,
    "2": _INT16,
    "3": _INT32,
    "4": INT64,
    "5": _FP16,
    "6": FP32,
    "7": FP64,
    "9": _RECORDED["c10::complex<float>"],
    "10": _RECORDED["c10::complex<double>"],
    "11": BOOLEAN,
    "15": _BF16,
    "23": _FP8,
    "24": _FP8,
    "25": _FP8,
    "26": _FP8,
    "44": _RECORDED["c10::Float8_e8m0fnu"],
    "45": _RECORDED["c10::Float4_e2m1fn_x2"],
}


def recorded(name: str) -> Dtype | None:
    """The dtype of a recorded type name, or None for what is no tensor ("Scalar", "TensorList", "") or unknown."""
    return _RECORDED.get(name)


def scalar_type(code: str) -> Dtype | None:
    """The dtype of a recorded `dtype=` argument (PyTorch's ScalarType number as text), or None where not given."""
    return _BY_SCALAR_TYPE.get(code)


def wider(a: Dtype, b: Dtype) -> Dtype:
    """The wider of two operand dtypes: weight-only quantised kernels compute in the activations' dtype."""
    return a if (a.category, a.bytes) >= (b.category, b.bytes) else b


def promote(with_dims: list[Dtype], without_dims: list[Dtype], numbers: list[str]) -> Dtype | None:
    """The result dtype of an elementwise op.

    Args:
        with_dims: dtypes of the tensor operands that have dimensions.
        without_dims: dtypes of the zero-dimensional ones. A Python float wrapped into a tensor is recorded as a
            zero-dimensional double; it does not widen the result, so a double among them counts as the default float.
        numbers: recorded text of plain numbers ("2", "0.5").
    """
    scalars = [FP32 if d is FP64 else d for d in without_dims]
    scalars += [FP32 if _is_float(text) else INT64 for text in numbers if text]
    best = _highest(with_dims)
    extra = _highest(scalars)
    if best is None:
        return _highest(without_dims) or extra
    return extra if extra is not None and extra.category > best.category else best


def _is_float(text: str) -> bool:
    return any(mark in text for mark in ".einf")


def _highest(dtypes: list[Dtype]) -> Dtype | None:
    best: Dtype | None = None
    for dtype in dtypes:
        if best is not None and {best, dtype} == {_FP16, _BF16}:
            best = FP32
        else:
            best = dtype if best is None else wider(best, dtype)
    return best

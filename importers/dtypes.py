"""Names of dtypes as traces write them."""

from __future__ import annotations

from typing import Any

_DTYPES = {
    "float": "float32", "double": "float64", "c10::half": "float16", "half": "float16", "c10::bfloat16": "bfloat16",
    "bfloat16": "bfloat16", "long": "int64", "long int": "int64", "long long": "int64", "int": "int32",
    "short": "int16", "short int": "int16", "signed char": "int8", "char": "int8", "unsigned char": "uint8",
    "byte": "uint8", "bool": "bool", "c10::float8_e4m3fn": "float8_e4m3fn", "float8_e4m3fn": "float8_e4m3fn",
    "c10::float8_e5m2": "float8_e5m2", "float8_e5m2": "float8_e5m2",
    "c10::complex<float>": "complex64", "c10::complex<double>": "complex128",
}  # fmt: skip
_DTYPES.update({name: name for name in list(_DTYPES.values())})
_UNKNOWN_DTYPE = "unknown"


def torch_dtype(name: Any) -> str:
    """torch's name of a dtype as the profiler and c10d write it ('long int', 'c10::BFloat16', 'Float'); 'unknown'."""
    return _DTYPES.get(name.lower(), _UNKNOWN_DTYPE) if isinstance(name, str) else _UNKNOWN_DTYPE

"""Linear algebra on whole matrices: factorizations, solvers, eigenvalues and singular values, matrix functions.

A factorization is a chain: each panel of columns waits for the one before it, so small and medium matrices take a time
per column, and only large ones that of their products. Small matrices of a batch are factored side by side, a block
each (batched kernels of cuSOLVER and MAGMA); larger ones one after the other, partly overlapping.

FLOPs: Golub and Van Loan, Matrix Computations (4th ed.), sections 3.2, 4.2, 5.2, 8.3, 8.6. Times of the chains: the H200
sweep (validation/data/h200), matrices of 8 to 4,096 columns; singular values come from Jacobi rotations (gesvdj).
"""

from __future__ import annotations

from dataclasses import dataclass

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.roof import LAUNCH_FLOOR_NS, Roof
from phantora.compute.work import Work, base_name, first_tensor, item_bytes, nbytes, numel, read, written

FAMILY = "factorization"
WEIGHTS = (0.6, 1.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Method:
    """Chain and work of one method on an m x n matrix with p = min(m, n).

    fixed_ns and column_ns: time of the chain. cubes: FLOPs / (m n p). share: of the vector peak (float32, float64)
    that its products reach. kernels_per_column: launches of the library. joint_columns: matrices of a batch up to this
    many rows and columns are factored side by side. further: of a larger matrix's time that each further one of a
    batch takes.
    """

    fixed_ns: float
    column_ns: float
    cubes: float
    share: float
    kernels_per_column: float
    joint_columns: int = 32
    further: float = 1.0


# fmt: off
METHODS: dict[str, _Method] = {
    "cholesky": _Method(fixed_ns=14e3, column_ns=350, cubes=1 / 3, share=0.8, kernels_per_column=0.0, joint_columns=128, further=0.4),
    "lu": _Method(fixed_ns=8e3, column_ns=1500, cubes=2 / 3, share=0.11, kernels_per_column=0.06, joint_columns=128, further=0.4),
    "solve": _Method(fixed_ns=15e3, column_ns=2000, cubes=2 / 3, share=0.12, kernels_per_column=0.06, joint_columns=128, further=0.4),
    "inverse": _Method(fixed_ns=15e3, column_ns=1900, cubes=2.0, share=0.22, kernels_per_column=0.07, joint_columns=128, further=0.4),
    "qr": _Method(fixed_ns=10e3, column_ns=3000, cubes=8 / 3, share=0.18, kernels_per_column=0.24, joint_columns=0, further=0.5),
    "triangular": _Method(fixed_ns=2e3, column_ns=190, cubes=1.0, share=0.2, kernels_per_column=0.01, joint_columns=128, further=0.6),
    "eigh": _Method(fixed_ns=60e3, column_ns=9e3, cubes=9.0, share=0.2, kernels_per_column=0.5),
    "eigvalsh": _Method(fixed_ns=60e3, column_ns=9e3, cubes=4 / 3, share=0.03, kernels_per_column=0.4),
    "eig": _Method(fixed_ns=100e3, column_ns=40e3, cubes=25.0, share=0.1, kernels_per_column=13.0),
    "svd": _Method(fixed_ns=40e3, column_ns=20e3, cubes=60.0, share=0.035, kernels_per_column=2.5),
    "svdvals": _Method(fixed_ns=40e3, column_ns=20e3, cubes=60.0, share=0.035, kernels_per_column=2.5),
    "matrix_exp": _Method(fixed_ns=140e3, column_ns=0, cubes=32.0, share=0.9, kernels_per_column=0.0, joint_columns=1 << 20),
}
_FIXED_KERNELS = {"matrix_exp": 65, "triangular": 2}
_TALL_EXPONENT = {"svd": 0.03, "svdvals": 0.03}  # of rows per column in the time of a column; 0.25 elsewhere
_METHOD_OF = {
    "linalg_cholesky_ex": "cholesky", "cholesky": "cholesky", "cholesky_inverse": "inverse", "linalg_cholesky": "cholesky",
    "_cholesky_solve_helper": "triangular", "cholesky_solve": "triangular",
    "linalg_lu_factor_ex": "lu", "linalg_lu": "lu", "_lu_with_info": "lu", "linalg_lu_factor": "lu", "_linalg_det": "lu",
    "_linalg_slogdet": "lu", "linalg_ldl_factor_ex": "lu", "linalg_det": "lu", "linalg_ldl_factor": "lu",
    "linalg_lu_solve": "triangular", "linalg_ldl_solve": "triangular", "linalg_solve_triangular": "triangular",
    "triangular_solve": "triangular",
    "_linalg_solve_ex": "solve", "linalg_solve_ex": "solve", "linalg_lstsq": "qr", "linalg_solve": "solve",
    "linalg_inv_ex": "inverse", "inverse": "inverse", "linalg_inv": "inverse",
    "linalg_qr": "qr", "geqrf": "qr", "linalg_householder_product": "qr", "orgqr": "qr", "ormqr": "qr", "qr": "qr",
    "_linalg_svd": "svd", "linalg_svd": "svd", "linalg_pinv": "svd", "linalg_svdvals": "svdvals", "svd": "svd",
    "_linalg_eigh": "eigh", "linalg_eigh": "eigh", "linalg_eigvalsh": "eigvalsh",
    "linalg_eig": "eig", "_linalg_eigvals": "eig", "linalg_eigvals": "eig", "linalg_matrix_exp": "matrix_exp",
}
# fmt: on
NAMES = tuple(_METHOD_OF)
_WITHOUT_VECTORS = {"svd": "svdvals", "eigh": "eigvalsh"}


def describe(call: OpCall) -> tuple[Work, ...]:
    name = base_name(call.name)
    matrix = first_tensor(call, "A", "LU", "LD", "input") if "solve" in name else first_tensor(call)
    matrix = matrix or first_tensor(call)
    if matrix is None or len(matrix.shape) < 2:
        return ()
    method = _method(call, name)
    m, n = matrix.shape[-2:]
    if method == "triangular":
        right = first_tensor(call, "B", "self") or matrix
        n = right.shape[-1]
    batch = max(numel(matrix) // max(matrix.shape[-2] * matrix.shape[-1], 1), 1)
    chosen = METHODS[method]
    columns = _columns(method, m, n)
    one_by_one = 1 if max(m, n) <= chosen.joint_columns else batch
    return (
        Work(
            family=FAMILY,
            curves=(f"linalg/{method}/{_kind(matrix)}", f"linalg/{method}/float32"),
            at=(batch, max(m, 1), max(n, 1)),
            flops=int(chosen.cubes * batch * m * n * columns),
            bytes=sum(map(nbytes, read(call))) + sum(map(nbytes, written(call))),
            num_kernels=round(_FIXED_KERNELS.get(method, 6) + chosen.kernels_per_column * columns) * one_by_one,
        ),
    )


def _method(call: OpCall, name: str) -> str:
    """Without vectors the second half of an eigenvalue or singular value problem is left out."""
    method = _METHOD_OF[name]
    if call.arg("compute_uv", call.arg("compute_v", True)) is False:
        return _WITHOUT_VECTORS.get(method, method)
    return method


def _kind(matrix: TensorSpec) -> str:
    """float64 or float32; complex numbers cost four real products."""
    return "float64" if item_bytes(matrix.dtype) >= 8 and matrix.dtype != "complex64" else "float32"


def _columns(method: str, m: int, n: int) -> int:
    """Steps of the chain: columns of the smaller side; those of the triangle for a solve with any number of columns."""
    return max(m if method == "triangular" else min(m, n), 1)


def model_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    """Time of `at` = (matrices, rows, columns) by the method that `curve` names."""
    _, name, kind = curve.split("/")
    method, (batch, m, n) = METHODS[name], at
    columns = _columns(name, m, n)
    tall = (max(m, n) / columns) ** _TALL_EXPONENT.get(name, 0.25) if name != "triangular" else 1.0
    chain = method.fixed_ns + method.column_ns * columns * tall
    work = method.cubes * m * columns * n / (roof.flops_per_ns(kind) * method.share)
    if max(m, n) <= method.joint_columns:  # side by side, a block each
        return LAUNCH_FLOOR_NS + chain * max(batch / (8.0 * roof.num_sms), 1.0) + batch * work
    return LAUNCH_FLOOR_NS + (chain + work) * (1.0 + method.further * (batch - 1))

"""What is read of memory accesses in a kernel's text (compiled/accesses.py)."""

from __future__ import annotations

from dataclasses import asdict

from phantora.intercept.compiled import accesses

TRANSPOSE = """
@triton.jit
    yindex = yoffset + tl.arange(0, YBLOCK)[:, None]
    x1 = xindex
    y0 = yindex
    tmp0 = tl.load(in_ptr0 + (y0 + 8200*x1), ymask)
    tl.store(out_ptr0 + (x1 + 32768*y0), tmp2, ymask)
"""
POINTWISE = """
@triton.jit
    x0 = (xindex % 768)
    x1 = xindex // 768
    x2 = xindex
    tmp0 = tl.load(in_ptr0 + (x0 + 768*(((7919*x1) % 50257))), None)
    tmp1 = tl.load(in_ptr1 + (1 + 2*x2), None)
    tmp2 = tl.load(in_ptr2 + (x1), None, eviction_policy='evict_last')
    tmp3 = tl.load(in_ptr3 + (x0 + 768*tmp2), None)
    tmp4 = tl.load(in_ptr4 + (x1 + 4096*((x0 % 32))), None)
    tl.store(out_ptr0 + (x2), tmp0, None)
"""
REDUCTION = """
@triton.jit
    rindex = r0_index
    x0 = xindex
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        r0_1 = r0_index
        tmp0 = tl.load(in_ptr0 + (r0_1 + 512*x0), r0_mask)
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        r0_1 = r0_index
        tl.store(out_ptr1 + (r0_1 + 512*x0), tmp5, r0_mask)
    tl.store(out_ptr0 + (x0), tmp4, xmask)
"""


def counted(text: str) -> dict[str, int]:
    return {name: value for name, value in asdict(accesses.count(text)).items() if value}


def test_a_transpose_reads_along_one_side_and_writes_along_the_other() -> None:
    assert counted(TRANSPOSE) == {"near": 2, "tiles": 1}


def test_what_neighbouring_threads_see() -> None:
    """x1 is the same for neighbours (no access of its own); 768 and 50257 are no powers of two."""
    assert counted(POINTWISE) == {"near": 2, "strided": 1, "gathers": 1, "far_loads": 1, "divisions": 3}


def test_what_is_done_once_per_row_counts_as_nothing() -> None:
    assert counted(REDUCTION) == {"near": 2, "sweeps": 2}


def test_indices_keep_nested_brackets() -> None:
    found = accesses.indices(POINTWISE)
    assert found[0] == ("load", "in_ptr0", "x0 + 768*(((7919*x1) % 50257))")
    assert [kind for kind, _, _ in found] == ["load"] * 5 + ["store"]

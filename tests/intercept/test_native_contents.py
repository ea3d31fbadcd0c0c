"""Known, pending and made-up contents of simulated tensors; planned operators around them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from armed import NUM_DEVICES, arm, records

from phantora.engine.protocol import Kind
from phantora.intercept import session

pytestmark = pytest.mark.torch


class Fetcher:
    """Contents that 'arrive from another rank'."""

    def __init__(self) -> None:
        self.payloads: dict[int, Any] = {}
        self.fetched: list[int] = []

    def fetch(self, token: int) -> Any:
        self.fetched.append(token)
        return self.payloads.get(token)


@pytest.fixture
def native() -> Any:
    native = arm()
    native.drain()
    return native


@pytest.fixture
def fetcher(native: Any) -> Iterator[Fetcher]:
    import torch

    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_python.so")
    fetcher = Fetcher()
    native.install(NUM_DEVICES, fetcher, library)
    yield fetcher
    native.install(NUM_DEVICES, session.sink, library)


def as_bytes(tensor: Any) -> Any:
    import torch

    return tensor.contiguous().view(torch.uint8).reshape(-1)


def test_contents_live_in_the_storage(native: Any) -> None:
    import torch

    base = torch.empty(4, 3, dtype=torch.int64, device="cuda")
    assert native.shadow(base) is None and not native.shadow_has(base)
    native.shadow_new(base).copy_(torch.arange(12).view(4, 3))
    assert native.shadow(base.t()).tolist() == torch.arange(12).view(4, 3).t().tolist()
    native.shadow(base[1]).fill_(7)
    assert native.shadow(base)[1].tolist() == [7, 7, 7]
    native.shadow_drop(base)
    assert native.shadow(base[0]) is None


def test_limits_depend_on_the_kind_of_element(native: Any) -> None:
    import torch

    assert native.small(torch.empty(4096, device="cuda")) and not native.small(torch.empty(4097, device="cuda"))
    assert native.small(torch.empty(1 << 19, dtype=torch.int64, device="cuda"))
    assert not native.small(torch.empty((1 << 19) + 1, dtype=torch.int64, device="cuda"))
    assert native.small(torch.empty(100 << 20, dtype=torch.uint8, device="cuda"))


def test_pending_contents_are_fetched_when_somebody_looks(native: Any, fetcher: Fetcher) -> None:
    import torch

    fetcher.payloads[5] = as_bytes(torch.arange(6, dtype=torch.int32))
    tensor = torch.empty(2, 3, dtype=torch.int32, device="cuda")
    native.shadow_pending(tensor, 5)
    assert native.shadow_has(tensor) and fetcher.fetched == []
    assert native.shadow(tensor).tolist() == [[0, 1, 2], [3, 4, 5]] and fetcher.fetched == [5]
    native.shadow(tensor)
    assert fetcher.fetched == [5]


def test_pending_parts_of_one_buffer_come_together(native: Any, fetcher: Fetcher) -> None:
    import torch

    buffer = torch.empty(2, 3, dtype=torch.int64, device="cuda")
    fetcher.payloads = {1: as_bytes(torch.tensor([1, 2, 3])), 2: as_bytes(torch.tensor([4, 5, 6]))}
    native.shadow_pending(buffer[0], 1)
    native.shadow_pending(buffer[1], 2)
    assert native.shadow(buffer).tolist() == [[1, 2, 3], [4, 5, 6]] and fetcher.fetched == [1, 2]


def test_pending_contents_of_a_strided_tensor(native: Any, fetcher: Fetcher) -> None:
    import torch

    transposed = torch.empty(3, 2, dtype=torch.int64, device="cuda").t()
    fetcher.payloads[9] = as_bytes(torch.arange(6).view(2, 3))
    native.shadow_pending(transposed, 9)
    assert native.shadow(transposed).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_an_overwrite_or_drop_forgets_without_fetching(native: Any, fetcher: Fetcher) -> None:
    import torch

    tensor = torch.empty(4, dtype=torch.int64, device="cuda")
    native.shadow_pending(tensor, 1)
    native.shadow_new(tensor).fill_(3)
    assert native.shadow(tensor).tolist() == [3, 3, 3, 3]
    native.shadow_pending(tensor, 2)
    native.shadow_drop(tensor)
    assert native.shadow(tensor) is None
    native.shadow_pending(tensor, 3)
    tensor.copy_(torch.arange(4))
    assert tensor.tolist() == [0, 1, 2, 3]
    assert fetcher.fetched == []


def test_contents_that_stay_unknown(native: Any, fetcher: Fetcher) -> None:
    import torch

    tensor = torch.empty(4, dtype=torch.int64, device="cuda")
    native.shadow_pending(tensor, 1)
    assert native.shadow(tensor) is None and not native.shadow_has(tensor) and fetcher.fetched == [1]


def test_operators_use_pending_contents_only_if_the_rest_is_known(native: Any, fetcher: Fetcher) -> None:
    import torch

    known = torch.arange(4, device="cuda")
    unknown = torch.empty(4, dtype=torch.int64, device="cuda")
    coming = torch.empty(4, dtype=torch.int64, device="cuda")
    native.shadow_drop(unknown)
    fetcher.payloads[1] = as_bytes(torch.tensor([10, 20, 30, 40]))
    native.shadow_pending(coming, 1)
    torch.add(coming, unknown)  # defines the signature through Python
    fetcher.fetched.clear()
    native.shadow_pending(coming, 1)
    torch.add(coming, unknown)
    assert fetcher.fetched == []
    assert torch.add(coming, known).tolist() == [10, 21, 32, 43] and fetcher.fetched == [1]


def test_stand_ins_are_remembered_until_overwritten(native: Any) -> None:
    import torch

    tensor = torch.empty((), device="cuda")
    native.shadow_new(tensor).fill_(1.0)
    native.mark_stand_in(tensor)
    assert native.is_stand_in(tensor)
    native.shadow_new(tensor).fill_(2.0)
    assert not native.is_stand_in(tensor)


# ------------------------------------------------------------------ planned operators


def hits(native: Any, function: Any) -> int:
    before = native.plan_stats()[0]
    function()
    return native.plan_stats()[0] - before


def test_the_second_call_of_a_signature_never_enters_python(native: Any) -> None:
    import torch

    a, b = torch.empty(37, 41, device="cuda"), torch.empty(37, 41, device="cuda")
    with torch.no_grad():
        assert [hits(native, lambda: torch.maximum(a, b)) for _ in range(3)] == [0, 1, 1]
        assert hits(native, lambda: torch.maximum(a.t(), b.t())) == 0  # other strides
        assert hits(native, lambda: torch.maximum(a, torch.empty(41, device="cuda"))) == 0  # another shape
        assert hits(native, lambda: torch.maximum(a, b)) == 1


def test_a_planned_call_does_what_the_python_kernel_does(native: Any) -> None:
    import torch

    def run(planned: bool) -> list[tuple[int, int, int]]:
        native.set_planning(planned)
        native.drain()
        x = torch.empty(33, 65, device="cuda")
        y = (x @ x.t()).sin().add_(1.0)
        torch.cat([y, y]).sum()
        values, indices = y.max(1)
        assert values.shape == indices.shape == (33,) and indices.dtype == torch.int64
        return [(r.kind, r.device, r.a) for r in records(native.drain()) if r.kind == Kind.OP]

    try:
        first = run(True)
        assert run(True) == run(False) == first
    finally:
        native.set_planning(True)


def test_plans_step_aside_when_contents_can_be_computed(native: Any) -> None:
    import torch

    for value in (1, 2, 3):
        assert torch.mul(torch.tensor([value], device="cuda"), 10).item() == value * 10


def test_a_planned_write_forgets_the_old_contents(native: Any) -> None:
    import torch

    unknown = torch.empty(8, device="cuda")
    native.shadow_drop(unknown)
    for _ in range(3):
        target = torch.zeros(8, device="cuda")
        assert target.tolist() == [0.0] * 8
        target.add_(unknown)
        assert not native.shadow_has(target)


def test_a_context_of_global_switches_belongs_to_the_signature(native: Any) -> None:
    import torch

    a = torch.empty(19, 23, device="cuda")
    torch.tanh(a)
    assert hits(native, lambda: torch.tanh(a)) == 1
    previous = torch.backends.cuda.matmul.allow_tf32
    native.set_plan_context(12345)
    try:
        assert hits(native, lambda: torch.tanh(a)) == 0
    finally:
        native.set_plan_context(0)
        torch.backends.cuda.matmul.allow_tf32 = not previous
        torch.backends.cuda.matmul.allow_tf32 = previous


def test_specifications_make_tensors(native: Any) -> None:
    import torch

    spec = native.Spec(torch.empty(3, 4, device="meta").t())
    tensor = spec.make(2)
    assert (tensor.shape, tensor.stride(), tensor.device.index) == ((4, 3), (1, 4), 2)
    assert (spec.nbytes, spec.small, spec.ndim) == (48, True, 2)
    with pytest.raises(TypeError):
        native.Spec(3)


def test_plan_reports_wrong_use(native: Any) -> None:
    assert native.plan(0, None, True) is False and native.pending_plan() is False  # nobody asked

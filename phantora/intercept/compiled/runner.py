"""Calls of compiled graphs: what they cost the host, and CUDA graphs of mode="reduce-overhead".

A call of a compiled graph costs the guards of its frame and AOTAutograd's prologue once, something per argument, and
every launch in it a share of what it costs in eager code (the wrapper is Python, but without autograd, autocast and
modules). Shares are of the host's own costs, so that they follow the host profile. `inside` is fitted to one step
that is bound by the host (GPT-2 124M compiled, 32.2 ms on lab-h200 of which 25.6 GPU busy, torch 2.11): 18 us a
fused kernel there, of which a profiler sees 12 us (launcher and cuLaunchKernel); the others are estimates.
validation/measure/compile_bench.py (part `host`) measures them all.

A graph under mode="reduce-overhead" runs twice as it is (Inductor's warm-up, then the capture), then as a CUDA
graph: the host pays one launch and a little per kernel, inputs that are not parameters are copied to their fixed
places, and memory comes from the one pool that all graphs of the process share (torch/_inductor/cudagraph_trees.py).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from phantora.intercept.compiled import accounts

native: Any = sys.modules["phantora_native"]

_PERMILLE, _GRAPH_LAUNCH = 47, 33  # native/record.h: Kind
_WARM_UP_CALLS = 2
_ALL_STREAMS = -2  # phantora_native.begin_pool
_POOL = (1 << 40, 0)  # beside those that torch.cuda.graph counts from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CallShares:
    """Host time of compiled code in thousandths: of the host's class 'kernel', or (inside, node) of a call's own
    class."""

    call: int = 1500
    """Guards, AOTAutograd's prologue and the wrapper's, per graph and call."""
    argument: int = 25
    """Per input of the graph: guard, unpacking, assert_size_stride."""
    inside: int = 800
    """Launches and allocations from the wrapper, of what they cost in eager code."""
    node: int = 1
    """A node of a CUDA graph, beside the one launch of the graph: since CUDA 12.6 nearly nothing ("Constant Time
    Launch for Straight-Line CUDA Graphs", NVIDIA developer blog, 2024)."""


SHARES = CallShares()


class CompiledCall:
    """A compiled graph with its host cost. Called with one list of inputs, as Inductor's callables are."""

    _boxed_call = True

    def __init__(self, compiled: Callable[[list[Any]], Any]) -> None:
        self.compiled = compiled
        self.num_calls = 0

    def __call__(self, inputs: list[Any]) -> Any:
        self.num_calls += 1
        if self.num_calls == 2:
            accounts.collect_garbage()
        native.charge_units(_PERMILLE, SHARES.call + SHARES.argument * len(inputs))
        return self.run(inputs, SHARES.inside)

    def run(self, inputs: list[Any], share: int) -> Any:
        """Without the cost of the call itself; what happens inside costs `share` thousandths."""
        previous = native.set_cost_share(share)
        try:
            return self.compiled(inputs)
        finally:
            native.set_cost_share(previous)


class GraphedCall:
    """A compiled graph that is captured and then replayed: its kernels again, for one host call."""

    _boxed_call = True

    def __init__(self, compiled: CompiledCall, static_inputs: Sequence[int], device: int) -> None:
        self.compiled = compiled
        self.static_inputs = frozenset(static_inputs)
        self.device = device
        self.num_calls: Counter[tuple[int, ...]] = Counter()  # by symbolic sizes: each has its own graph
        self.fixed_inputs: dict[tuple[int, ...], Tensor] = {}

    def __call__(self, inputs: list[Any]) -> Any:
        sizes = tuple([value for value in inputs if isinstance(value, int)])
        self.num_calls[sizes] += 1
        native.begin_pool(self.device, *_POOL, _ALL_STREAMS)
        try:
            if self.num_calls[sizes] <= _WARM_UP_CALLS:
                return self.compiled(inputs)
            return self._replay(inputs, sizes)
        finally:
            native.end_pool(self.device, *_POOL)

    def _replay(self, inputs: list[Any], sizes: tuple[int, ...]) -> Any:
        native.charge_units(_PERMILLE, SHARES.call + SHARES.argument * len(inputs))
        self._copy_inputs(inputs, sizes)
        native.charge_units(_GRAPH_LAUNCH, 1)
        return self.compiled.run(inputs, SHARES.node)

    def _copy_inputs(self, inputs: list[Any], sizes: tuple[int, ...]) -> None:
        """Inputs that may lie elsewhere at every call: their contents go to where the captured kernels read them.

        Static are parameters, buffers and what another graph of the same pool made (saved activations).
        """
        sources, targets = [], []
        for index, value in enumerate(inputs):
            if index in self.static_inputs or not isinstance(value, Tensor) or not value.is_cuda:
                continue
            fixed = self.fixed_inputs.get((index, *sizes))
            if fixed is None:
                fixed = self.fixed_inputs[(index, *sizes)] = torch.empty_like(value)
            sources.append(value)
            targets.append(fixed)
        if targets:
            torch._foreach_copy_(targets, sources)


def install(compile_fx: ModuleType) -> None:
    """Around every graph that Inductor compiles or loads from its cache."""
    from torch._inductor import cudagraph_trees, output_code

    original = output_code.CompiledFxGraph.post_compile

    def post_compile(self: Any, *args: Any, **kwargs: Any) -> None:
        if self.current_callable is not None and "cuda" in self.device_types:
            accounts.count_graph()
            self.current_callable = CompiledCall(self.current_callable)
        original(self, *args, **kwargs)

    def cudagraphify(model: Any, static_input_idxs: Sequence[int] = (), *, device_index: int, **_: Any) -> Any:
        accounts.counts["cuda graphs"] += 1
        compiled = model if isinstance(model, CompiledCall) else CompiledCall(model)
        return GraphedCall(compiled, static_input_idxs, device_index)

    def cudagraphify_impl(model: Any, inputs: Any, static_input_idxs: Sequence[int], *_: Any, **options: Any) -> Any:
        return cudagraphify(model, static_input_idxs, device_index=options["device_index"])

    output_code.CompiledFxGraph.post_compile = post_compile
    compile_fx.cudagraphify = cudagraphify  # type: ignore[attr-defined]
    cudagraph_trees.cudagraphify_impl = cudagraphify_impl

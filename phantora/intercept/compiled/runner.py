"""Calls of compiled graphs: what they cost the host, and CUDA graphs of mode="reduce-overhead".

A call of a compiled graph costs the guards of its frame and AOTAutograd's prologue once, more under autograd, something per
input, and every launch in it a share of what it costs in eager code (the wrapper is Python, but without autograd, autocast
and modules). Shares are of the host's own costs, so that they follow the host profile. Figures: `CallShares`.

A graph under mode="reduce-overhead" runs twice as it is (Inductor's warm-up, then the capture), then as a CUDA
graph: the host pays one launch and a little per kernel, inputs that are not parameters are copied to their fixed
places, and memory comes from the one pool that all graphs of the process share (torch/_inductor/cudagraph_trees.py).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from phantora.intercept.compiled import accounts, fused_kernel

native: Any = sys.modules["phantora_native"]

_PERMILLE, _GRAPH_LAUNCH = 47, 33  # native/record.h: Kind
_WARM_UP_CALLS = 2
_ALL_STREAMS = -2  # phantora_native.begin_pool
_POOL = (1 << 40, 0)  # beside those that torch.cuda.graph counts from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CallShares:
    """Host time of compiled code in thousandths: of the host's class 'kernel', or (fused, library) of a launch's own class.

    From the part `host` of validation/data/h200/compile.json.gz, which are bare loops: us there, over the 7.1 us of an
    eager addition in the same loop, times 0.6. The last factor is the one between loops and training steps: there an
    eager launch costs 2.9 times what it costs in a loop (docs/host_time.md), what a compiled graph launches 1.7 times (GPT-2
    with 256 tokens: 10.4 ms between the default mode and reduce-overhead, 6.1 by the loops).
    """

    inference: int = 2200
    """A call without gradients: 26 us of guards and prologue (one kernel: 37 us with its launch and allocation)."""
    forward: int = 4100
    """A call under autograd: 49 us (60 us with launch and allocation)."""
    backward: int = 9300
    """110 us of the 190 us that a backward with one parameter adds; the rest is backward() itself and its accumulation."""
    argument: int = 60
    """Per input without gradients: guard, unpacking, assert_size_stride: 0.7 us (slope of the replayed graphs)."""
    forward_argument: int = 190
    """2.3 us: a parameter is looked up, guarded and kept for the backward."""
    backward_argument: int = 300
    """3.5 us: a saved tensor is unpacked, a gradient handed over."""
    fused: int = 660
    """A Triton kernel: 7.8 us of launcher and cuLaunchKernel."""
    library: int = 380
    """What the wrapper calls with out=, and allocations: 9 us for a product where eager code needs 20 in a loop."""
    replay: int = 1800
    """Choosing the graph in the tree, checking fixed addresses: 21 us of a replayed call beside its launch and copies."""
    node: int = 0
    """A node of a CUDA graph: 1.9 ns (part `graphs`: 3.2 us for 1 to 100 nodes, 8.6 us for 3,000)."""


SHARES = CallShares()


class CompiledCall:
    """A compiled graph with its host cost. Called with one list of inputs, as Inductor's callables are."""

    _boxed_call = True

    def __init__(self, compiled: Callable[[list[Any]], Any], options: Mapping[str, Any] | None = None) -> None:
        """options: those of the compilation (`_CompileFxKwargs`)."""
        self.compiled = compiled
        self.num_calls = 0
        self.call_share, self.argument_share = _shares(options or {})

    def __call__(self, inputs: list[Any]) -> Any:
        self.num_calls += 1
        if self.num_calls == 2:
            accounts.collect_garbage()
        self.charge_call(len(inputs))
        return self.run(inputs, SHARES.library, SHARES.fused)

    def charge_call(self, num_inputs: int) -> None:
        native.charge_units(_PERMILLE, self.call_share + self.argument_share * num_inputs)

    def run(self, inputs: list[Any], library_share: int, fused_share: int) -> Any:
        """Without the cost of the call itself; what happens inside costs these thousandths."""
        previous = native.set_cost_share(library_share)
        previous_fused = fused_kernel.set_share(fused_share)
        try:
            return self.compiled(inputs)
        finally:
            fused_kernel.set_share(previous_fused)
            native.set_cost_share(previous)


def _shares(options: Mapping[str, Any]) -> tuple[int, int]:
    """(per call, per input)"""
    if options.get("is_backward"):
        return SHARES.backward, SHARES.backward_argument
    if options.get("is_inference", True):
        return SHARES.inference, SHARES.argument
    return SHARES.forward, SHARES.forward_argument


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
        self.compiled.charge_call(len(inputs))
        native.charge_units(_PERMILLE, SHARES.replay)
        self._copy_inputs(inputs, sizes)
        native.charge_units(_GRAPH_LAUNCH, 1)
        return self.compiled.run(inputs, SHARES.node, SHARES.node)

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
            self.current_callable = CompiledCall(self.current_callable, self.fx_kwargs)
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

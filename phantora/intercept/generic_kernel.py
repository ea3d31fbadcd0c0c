"""The kernel that nearly every operator gets: shapes by meta tensors once per signature, one launch, known contents.

The first call of a signature comes here and leaves a plan in native code; repeats never enter Python unless contents
can be computed. What a call does is therefore decided once, in `_Signature`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from phantora.intercept import contents, random_offsets, session, unknown_values, workspaces
from phantora.intercept.argument_checks import check_arguments
from phantora.intercept.calls import key_of_call, op_call
from phantora.intercept.device_check import check_devices
from phantora.intercept.flags import context, flags_of
from phantora.intercept.operators import CudaOperator
from phantora.intercept.schemas import Schema, tensors_in
from phantora.intercept.shape_inference import Argument, Constant, New, NewList, Recipe, ResizedArgument, View, infer

native: Any = sys.modules["phantora_native"]

# Their results have no contents until somebody writes them, and making them is no work for the device.
ALLOCATIONS = frozenset(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided empty_quantized".split()
)
# Lengths of results depend on the values of numbers.
EXACT_FLOATS = frozenset("arange range linspace logspace full".split())
# torch writes these although the schema does not say so (running statistics of a batch norm).
HIDDEN_WRITES = {
    name: ("running_mean", "running_var")
    for name in (
        "native_batch_norm",
        "cudnn_batch_norm",
        "batch_norm_gather_stats",
        "batch_norm_gather_stats_with_counts",
    )
}


@dataclass(slots=True)
class _Signature:
    """number: for native.launch, -1 when the device has nothing to do. recipes: None for an operator in place."""

    number: int
    recipes: list[Recipe] | None
    is_computable: bool  # all inputs and outputs are small enough to carry contents
    writes_small: bool
    stand_in_dtype: torch.dtype | None  # of the single number that it makes, or of the counts
    num_counted: int  # elements of a mask that each number of the result counts; 0: it counts none
    philox_increment: int
    needs_workspace: bool
    temporaries: tuple[int, ...]
    """For each result: bytes of a block that the call takes and gives back once the result is there."""


class Kernel:
    """The kernel of one overload, callable as torch.library wants it."""

    def __init__(self, op: Any, operator: CudaOperator | None = None) -> None:
        self.op = op
        self.operator = operator
        self.schema = Schema(op)
        qualified = op.name()  # 'aten::add.Tensor'
        self.name = qualified[6:] if qualified.startswith("aten::") else qualified
        self.base_name = self.name.partition(".")[0]
        self.is_random = torch.Tag.nondeterministic_seeded in op.tags
        self.allocates_only = self.base_name in ALLOCATIONS
        self.exact_floats = self.base_name in EXACT_FLOATS
        self.hidden_writes = HIDDEN_WRITES.get(self.base_name, ())
        self.has_cpu_kernel = _has_cpu_kernel(qualified)
        self.signatures: dict[Any, _Signature] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = self._numbers_to_tensors(args, kwargs)
        key = (context.number, key_of_call(args, kwargs, self.exact_floats))
        signature = self.signatures.get(key)
        if signature is None:
            signature = self.signatures[key] = self._define(args, kwargs)
        elif self.operator is not None:
            check_devices(self.operator, self.schema, args, kwargs)
        if native.pending_plan():
            self._leave_plan(signature, args, kwargs)
        leaves = tensors_in(args, kwargs)
        device = device_of(leaves, kwargs)
        results = None if signature.recipes is None else self._make(signature, leaves, device)
        self._launch(signature, device, kwargs)
        if signature.is_computable or signature.writes_small or self.hidden_writes:
            self._follow_contents(signature, args, kwargs, results)
        if signature.stand_in_dtype is not None and results is not None and not native.shadow_has(results[0]):
            contents.write_stand_in(results[0], self._stand_in(signature))
        return self._returned(args, kwargs, results)

    def _make(self, signature: _Signature, leaves: list[Tensor], device: int) -> list[Any]:
        if not signature.temporaries:
            return [recipe.make(leaves, device) for recipe in signature.recipes or ()]
        results = []
        for recipe, num_bytes in zip(signature.recipes or (), signature.temporaries):
            results.append(recipe.make(leaves, device))
            if num_bytes:
                native.touch_temporary(device, num_bytes)
        return results

    def _launch(self, signature: _Signature, device: int, kwargs: dict[str, Any]) -> None:
        if signature.needs_workspace:
            workspaces.ensure(self.base_name, device)
        if signature.philox_increment and not isinstance(kwargs.get("generator"), torch.Generator):
            native.philox(device, signature.philox_increment)
        elif signature.philox_increment:
            random_offsets.advance(kwargs["generator"], signature.philox_increment)
        if signature.number >= 0:
            native.launch(signature.number, device)

    def _returned(self, args: tuple[Any, ...], kwargs: dict[str, Any], results: list[Any] | None) -> Any:
        if results is None:
            results = [self.schema.argument(i, args, kwargs) for i in self.schema.returned_arguments if i is not None]
        if self.schema.num_returns == 0:
            return None
        return results[0] if self.schema.num_returns == 1 else tuple(results)

    def _numbers_to_tensors(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Wrapped numbers arrive as Python numbers where the schema wants tensors."""
        for position, name in self.schema.tensor_positions:
            if position < len(args):
                if isinstance(args[position], (int, float, complex)):
                    args = (*args[:position], _scalar_tensor(args[position]), *args[position + 1 :])
            elif isinstance(kwargs.get(name), (int, float, complex)):
                kwargs = {**kwargs, name: _scalar_tensor(kwargs[name])}
        return args, kwargs

    # ------------------------------------------------------------------ first call of a signature

    def _define(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Signature:
        if self.operator is not None:
            check_devices(self.operator, self.schema, args, kwargs)
        check_arguments(self.op, self.schema, args, kwargs)
        leaves = tensors_in(args, kwargs)
        written = self.schema.written_tensors(args, kwargs)
        recipes: list[Recipe] | None = None
        outputs: list[Tensor] = []
        if not self.schema.is_in_place:
            inferred = infer(self.op, self.schema, args, kwargs)
            recipes, outputs = inferred.recipes, inferred.outputs
        is_computable = (
            self.has_cpu_kernel
            and not self.allocates_only
            and not self.schema.is_view
            and all(contents.is_small(t) for t in leaves if t.is_cuda)
            and all(_is_small_recipe(r) for r in recipes or ())
        )
        number = -1
        if self._has_work(leaves, written, outputs):
            number = session.register_price(op_call(self.schema, args, kwargs, outputs, flags_of(self.name)))
        sized = written if recipes is None else outputs
        num_counted = self._num_counted(leaves, outputs)
        return _Signature(
            number=number,
            recipes=recipes,
            is_computable=is_computable and not self.is_random,
            writes_small=any(t.is_cuda and contents.is_small(t) for t in written),
            stand_in_dtype=outputs[0].dtype if num_counted else self._stand_in_dtype(recipes, outputs),
            num_counted=num_counted,
            philox_increment=random_offsets.increment(self.base_name, self.schema, args, kwargs, sized)
            if self.is_random
            else 0,
            needs_workspace=number >= 0 and workspaces.is_needed(self.base_name),
            temporaries=workspaces.temporaries(self.base_name, dict(self.schema.bound(args, kwargs)), outputs)
            if number >= 0
            else (),
        )

    def _has_work(self, leaves: list[Tensor], written: list[Tensor], outputs: list[Tensor]) -> bool:
        if self.allocates_only or self.schema.is_view:
            return False
        touched = [*written, *outputs] or leaves
        return any(t.numel() for t in touched)

    def _stand_in_dtype(self, recipes: list[Recipe] | None, outputs: list[Tensor]) -> torch.dtype | None:
        if recipes is None or self.allocates_only or len(recipes) != 1 or not isinstance(recipes[0], New):
            return None
        return outputs[0].dtype if outputs[0].dim() == 0 else None

    def _num_counted(self, leaves: list[Tensor], outputs: list[Tensor]) -> int:
        """Elements of a mask behind each number of a small result of `sum`: what a mask selects, it also counts."""
        if self.base_name != "sum" or len(outputs) != 1 or len(leaves) != 1 or leaves[0].dtype != torch.bool:
            return 0
        return leaves[0].numel() // outputs[0].numel() if outputs[0].numel() and contents.is_small(outputs[0]) else 0

    def _stand_in(self, signature: _Signature) -> Any:
        """For contents.write_stand_in, of a signature with a stand_in_dtype."""
        if signature.num_counted:
            return unknown_values.num_selected(signature.num_counted)
        return unknown_values.scalar_result(self.schema.name, signature.stand_in_dtype)  # type: ignore[arg-type]

    def _leave_plan(self, signature: _Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Tell native code how to repeat this signature whenever its contents cannot be computed."""
        if signature.is_computable and any(not t.numel() for t in tensors_in(args, kwargs)):
            return  # contents of tensors without elements are always known, which native code does not see
        if signature.num_counted:
            return  # plans know stand-ins of single numbers only
        outs = None if signature.number < 0 or self.hidden_writes else self._plan_outputs(signature)
        made = (r for r in signature.recipes or () if isinstance(r, (New, NewList)))
        is_large = not signature.writes_small and not any(_is_small_recipe(r) for r in made)
        native.plan(signature.number, outs, is_large, signature.philox_increment, signature.temporaries)

    def _plan_outputs(self, signature: _Signature) -> list[Any] | None:
        if signature.recipes is None:
            return list(self.schema.returned_arguments)
        outs: list[Any] = []
        for recipe, argument in zip(signature.recipes, self.schema.returned_arguments):
            if isinstance(recipe, New):
                outs.append(recipe.spec)
            elif isinstance(recipe, Argument) and argument is not None:
                outs.append(argument)
            elif isinstance(recipe, NewList):
                outs.append(recipe.specs)
            elif isinstance(recipe, Constant) and recipe.value is None:
                outs.append(None)
            else:
                return None
        if signature.stand_in_dtype is not None:
            outs[0] = (outs[0], torch.tensor(self._stand_in(signature), dtype=signature.stand_in_dtype, device="cpu"))
        return outs

    # ------------------------------------------------------------------ contents

    def _follow_contents(
        self, signature: _Signature, args: tuple[Any, ...], kwargs: dict[str, Any], results: list[Any] | None
    ) -> None:
        """Compute on the CPU what can be computed; forget what was overwritten with something unknown."""
        if signature.is_computable and self._compute(args, kwargs, signature, results):
            return
        for tensor in self.schema.written_tensors(args, kwargs):
            contents.forget(tensor)
        for name, value in self.schema.bound(args, kwargs) if self.hidden_writes else ():
            if name in self.hidden_writes and isinstance(value, Tensor):
                contents.forget(value)

    def _compute(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], signature: _Signature, results: list[Any] | None
    ) -> bool:
        try:
            cpu_args = [contents.on_cpu(a) for a in args]
            cpu_kwargs = {k: self._cpu_argument(k, v) for k, v in kwargs.items() if k != "generator"}
            computed = self.op(*cpu_args, **cpu_kwargs)
        except (contents.Unknown, RuntimeError, NotImplementedError, IndexError, ValueError, TypeError):
            return False
        tainted = any(contents.is_stand_in(t) for t in tensors_in(args, kwargs) if t.is_cuda)
        store = _store_stand_in if tainted else _store
        if results is None:  # written through the aliases
            for tensor in self.schema.written_tensors(args, kwargs) if tainted else ():
                contents.write_stand_in(tensor, contents.known(tensor))
            return True
        values = [computed] if self.schema.num_returns == 1 else list(computed if computed is not None else ())
        for recipe, result, value in zip(signature.recipes or (), results, values):
            if isinstance(recipe, (New, ResizedArgument)) or (isinstance(recipe, Argument) and self.schema.out_names):
                store(result, value)
            elif isinstance(recipe, NewList):
                for one, its_value in zip(result, value):
                    store(one, its_value)
        return True

    def _cpu_argument(self, name: str, value: Any) -> Any:
        if name in self.schema.out_names and isinstance(value, Tensor):
            return torch.empty(0, dtype=value.dtype, device="cpu")
        return contents.on_cpu(value)


def device_of(leaves: list[Tensor], kwargs: dict[str, Any]) -> int:
    """Index of the device on which a call runs: asked for, else that of the first CUDA tensor, else the current one."""
    asked = kwargs.get("device")
    if asked is not None:
        index = torch.device(asked).index
        return native.device() if index is None else index
    for tensor in leaves:
        if tensor.is_cuda:
            return tensor.get_device()
    return native.device()


def _is_small_recipe(recipe: Recipe) -> bool:
    if isinstance(recipe, New):
        return recipe.spec.small
    if isinstance(recipe, NewList):
        return all(spec.small for spec in recipe.specs)
    return not isinstance(recipe, View)


def _store(result: Tensor, value: Any) -> None:
    """Auxiliary results of CPU kernels (embedding_bag, batch norms) have other shapes than CUDA's: these stay
    unknown."""
    if not isinstance(value, Tensor) or value.shape == result.shape:
        contents.write(result, value)


def _store_stand_in(result: Tensor, value: Any) -> None:
    if not isinstance(value, Tensor) or value.shape == result.shape:
        contents.write_stand_in(result, value)


def _scalar_tensor(value: int | float | complex) -> Tensor:
    return torch.tensor(value, device="cpu")


def _has_cpu_kernel(qualified: str) -> bool:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    keys = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd")
    return any(has(qualified, key) for key in keys)

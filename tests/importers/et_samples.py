"""Nodes of execution traces in both forms."""

from __future__ import annotations

from typing import Any

A, B, C, CPU = 11, 12, 13, 14  # storages


def value(storage: int, shape: list[int], device: str = "cuda:0") -> list[Any]:
    numel = 1
    for size in shape:
        numel *= size
    return [storage + 100, storage, 0, numel, 4, device]


def flat(
    number: int, name: str, parent: int, inputs: list, outputs: list, schema: str = "", rf_id: int = 0, tid: int = 1
) -> dict[str, Any]:
    """Schema 1.0.1. inputs, outputs: (value, shape, type)."""
    return {
        "id": number, "name": name, "parent": parent, "rf_id": rf_id or number, "tid": tid, "scope": 0,
        "op_schema": schema,
        **{f"{side}{suffix}": [entry[i] for entry in entries]
           for side, entries in (("input", inputs), ("output", outputs))
           for i, suffix in ((1, "_shapes"), (2, "_types"))},
        "inputs": [entry[0] for entry in inputs], "outputs": [entry[0] for entry in outputs],
    }  # fmt: skip


def nested(
    number: int, name: str, parent: int, inputs: list, outputs: list, schema: str = "", **attributes: Any
) -> dict[str, Any]:
    """Schema 1.0.2-chakra and later."""

    def side(entries: list) -> dict[str, Any]:
        return {key: [entry[i] for entry in entries] for i, key in enumerate(("values", "shapes", "types"))}

    attrs = {"rf_id": number, "tid": 1, "scope": 0, "op_schema": schema, **attributes}
    return {
        "id": number, "name": name, "ctrl_deps": parent, "inputs": side(inputs), "outputs": side(outputs),
        "attrs": [{"name": key, "type": "", "value": value} for key, value in attrs.items()],
    }  # fmt: skip


def tensor(storage: int, shape: list[int], device: str = "cuda:0") -> tuple:
    return value(storage, shape, device), shape, "Tensor(float)"


MM = "aten::mm(Tensor self, Tensor mat2) -> Tensor"
ADD_ = "aten::add_.Scalar(Tensor(a!) self, Scalar other) -> Tensor(a!)"
ADD = "aten::add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor"
READ = "aten::_local_scalar_dense(Tensor self) -> Scalar"


def step(make: Any) -> list[dict[str, Any]]:
    """mm, all_reduce of its result, a view, add of the result; then .item()."""
    reduced = ([value(C, [4, 2])], [[4, 2]], "GenericList[Tensor(float)]")
    texts = [(20, [], "Int"), (94_594_108_284_448, [], "Int"), (0, [], "Int"), ("allreduce", [], "String")]
    return [
        make(2, "aten::matmul", 1, [tensor(A, [4, 8]), tensor(B, [8, 2])], [tensor(C, [4, 2])]),
        make(3, "aten::mm", 2, [tensor(A, [4, 8]), tensor(B, [8, 2])], [tensor(C, [4, 2])], MM),
        make(4, "record_param_comms", 1, [reduced, *texts], [reduced]),
        make(5, "aten::view", 1, [tensor(C, [4, 2])], [tensor(C, [8])]),
        make(6, "aten::add_", 1, [tensor(A, [4, 8])], [tensor(A, [4, 8])], ADD_),
        make(7, "aten::add", 1, [tensor(C, [4, 2]), (1, [], "Int")], [tensor(A, [4, 2])], ADD),
        make(8, "aten::relu", 1, [tensor(CPU, [4], "cpu")], [tensor(CPU, [4], "cpu")]),
        make(9, "aten::item", 1, [tensor(A, [])], []),
        make(10, "aten::_local_scalar_dense", 9, [tensor(A, [])], [], READ),
    ]  # fmt: skip


def document(nodes: list[dict[str, Any]], schema: str = "1.0.1", pid: int = 7) -> dict[str, Any]:
    return {"schema": schema, "pid": pid, "time": "", "start_ts": 0, "finish_ts": 1, "nodes": nodes}

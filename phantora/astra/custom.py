"""Collectives that a trace of their own describes (`all-reduce-implementation-custom` and the like).

PREFIX.POSITION.et holds the SEND, RECV and COMP nodes of the member at that position of the group (of the world: of
that rank). All ready nodes start at once; there are no units to wait for. Sizes are those of this trace, whatever the
collective's. Source: astra-sim, system/astraccl/custom_collectives/CustomAlgorithm.cc.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from phantora.astra.config import System
from phantora.astra.network import Network
from phantora.astra.program import (
    COMMUNICATION,
    RECEIVE,
    SEND,
    WAIT,
    Compiler,
    Operation,
    Program,
)
from phantora.errors import UserError
from phantora.importers.chakra_file import ChakraReader


class CustomTraces:
    """The traces that describe collectives, each read once."""

    def __init__(self) -> None:
        self._reader, self._compiler = ChakraReader(), Compiler(System())
        self._programs: dict[str, Program] = {}

    def program(self, prefix: str, position: int) -> Program:
        """UserError: not there, malformed, or with nodes that cannot stand there."""
        path = f"{prefix}.{position}.et"
        program = self._programs.get(path)
        if program is None:
            program = self._programs[path] = self._compiler.program(self._reader.read(Path(path)))
            for operation in program.operations:
                if operation.kind not in (SEND, RECEIVE, WAIT) or (
                    operation.kind == WAIT and operation.unit == COMMUNICATION
                ):
                    raise UserError(
                        f"{path}: node {operation.id}: a collective's own trace has only SEND, RECV and COMP nodes"
                    )
        return program


class CustomPhase:
    """The one phase of such a collective."""

    queue = 0

    def __init__(self, program: Program, ranks: tuple[int, ...], num_npus: int) -> None:
        self._program, self._ranks, self._num_npus = program, ranks, num_npus

    def algorithm(self, stream: Any, rank: int) -> CustomAlgorithm:
        """See `plan.Phase`."""
        return CustomAlgorithm(stream, self._program, self._ranks, rank, self._num_npus)


class CustomAlgorithm:
    """Executes the trace on one rank. `ranks`: of the group, () for the world."""

    def __init__(self, stream: Any, program: Program, ranks: tuple[int, ...], rank: int, num_npus: int) -> None:
        self._stream, self._program, self._ranks, self._rank, self._num_npus = stream, program, ranks, rank, num_npus
        self._left = list(program.structure.num_parents)
        self._ready = [i for i, count in enumerate(self._left) if not count]
        self._num_running = 0

    def start(self) -> None:
        """The collective's turn has come."""
        ready, self._ready = self._ready, []
        self._num_running += len(ready)
        for index in ready:
            self._start_one(index, self._program.operations[index])

    def _start_one(self, index: int, operation: Operation) -> None:
        network: Network = self._stream.owner.network
        if operation.kind == WAIT:
            self._stream.owner.batches.after(operation.wait_ns, self._ended, index)
        elif operation.kind == SEND:
            network.send(self._rank, self._real(operation.target), operation.size, operation.tag, self._ended, index)
        else:
            network.receive(self._rank, self._real(operation.source), operation.size, operation.tag, self._ended, index)

    def _real(self, position: int) -> int:
        num = len(self._ranks) or self._num_npus
        if not 0 <= position < num:
            raise UserError(f"rank {self._rank}: a collective's own trace names member {position} of {num}")
        real = self._ranks[position] if self._ranks else position
        if real == self._rank:
            raise UserError(f"rank {self._rank}: a collective's own trace has a message to oneself")
        return real

    def _ended(self, index: int) -> None:
        self._num_running -= 1
        for child in self._program.structure.children[index]:
            self._left[child] -= 1
            if not self._left[child]:
                self._ready.append(child)
        self._ready.sort()
        self.start()
        if not self._num_running:
            self._stream.finished()

"""A small recorded run without recording: four ranks train two layers of a transformer, sharded as FSDP shards.

Parameters are gathered on one stream and gradients scattered on another while kernels run on stream 0; rank 2 is late
in every step (its data loader is slow), so the others wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from phantora.trace.model import CollectiveInfo, GroupInfo, RankTrace, Run, SignatureInfo

GATHER_STREAM, SCATTER_STREAM = 7, 8


def signature(name, family, us, shape=(4096, 4096), flops=0, source="measured", num_kernels=1) -> SignatureInfo:
    """A priced operator on a bf16 tensor of `shape`, `us` microseconds long."""
    moved = 2 * 2 * shape[0] * shape[1]
    tensors = (("bfloat16", shape),)
    return SignatureInfo(name, tensors, tensors, round(us * 1000), num_kernels, source, flops, moved, family)


SIGNATURES = [
    signature("aten::embedding", "embedding", 11.25, source="interpolated"),
    signature("aten::_fused_rms_norm", "norm", 18.4),
    signature("aten::mm", "gemm", 231.7, flops=2 * 4096**3),
    signature("aten::_scaled_dot_product_flash_attention", "attention", 142.3, flops=4 * 10**10, source="interpolated"),
    signature("aten::silu", "elementwise", 24.6, (4096, 14336)),
    signature("aten::add", "elementwise", 15.5),
    signature("aten::_fused_adamw_", "optimizer", 310.0, num_kernels=4, source="roofline"),
    signature("aten::cross_entropy_loss", "softmax", 44.2, (4096, 32000), source="roofline"),
    signature("memcpy_d2h", "copy", 0.4, (1, 1)),
]
EMBEDDING, NORM, MM, ATTENTION, SILU, ADD, ADAMW, LOSS, COPY = range(len(SIGNATURES))


@dataclass
class Builder:
    """Plays the same program on every rank. Streams are FIFO; a collective starts when its last member is there."""

    world_size: int = 4
    run: Run = None
    host: list[int] = field(default_factory=list)
    stream_end: dict[tuple[int, int], int] = field(default_factory=dict)
    memory: dict[int, int] = field(default_factory=dict)

    def __post_init__(self):
        ranks = tuple(range(self.world_size))
        self.run = Run(["train.py", "--layers", "2"], "made-up cluster", self.world_size, max(self.world_size // 2, 1))
        self.run.signatures = list(SIGNATURES)
        self.run.groups = [GroupInfo("world", ranks)]
        self.run.ranks = [
            RankTrace(rank, comm_streams={GATHER_STREAM: "world gather", SCATTER_STREAM: "world scatter"})
            for rank in ranks
        ]
        self.host = [0] * self.world_size

    def _begin(self, trace, stream, number, after):
        self.host[trace.rank] += 4_000
        row = len(trace.stream)
        dependencies = [r for r in after if r >= 0]
        waited = [trace.end_ns[r] for r in dependencies]
        start = max([self.host[trace.rank], self.stream_end.get((trace.rank, stream), 0), *waited])
        for name, value in zip(
            ("device", "stream", "signature", "issue_ns", "start_ns"), (0, stream, number, self.host[trace.rank], start)
        ):
            getattr(trace, name).append(value)
        for dependency in dependencies:
            trace.dependent.append(row)
            trace.dependency.append(dependency)
        return row, start

    def kernel(self, number, *, stream=0, after=()) -> int:
        """One kernel on every rank; returns its row (the same everywhere)."""
        for trace in self.run.ranks:
            row, start = self._begin(trace, stream, number, after)
            trace.end_ns.append(start + self.run.signatures[number].duration_ns)
            self.stream_end[trace.rank, stream] = trace.end_ns[row]
        return row

    def collective(
        self, kind, size_bytes, us, *, stream, after=(), algorithm="ring / Simple", ranks=None, count=1
    ) -> int:
        """One communication kernel on `ranks` (all), of `count` coalesced collectives."""
        members = self.run.ranks if ranks is None else [self.run.ranks[r] for r in ranks]
        group = tuple(t.rank for t in members)
        if ranks is not None and kind != "send_recv":
            self.run.groups.append(GroupInfo(f"group {len(self.run.groups)}", group))
        numbers = tuple(range(len(self.run.collectives), len(self.run.collectives) + count))
        begun = []
        for trace in members:
            trace.work_collectives.append(numbers)
            begun.append(self._begin(trace, stream, -len(trace.work_collectives), after))
        start = max(start for _, start in begun)
        end = start + round(us * 1000)
        number = 0 if kind == "send_recv" or ranks is None else len(self.run.groups) - 1
        for _ in numbers:
            self.run.collectives.append(
                CollectiveInfo(
                    kind, number, group, size_bytes, "bfloat16", 0, start, end, algorithm, "train.py:42 in step"
                )
            )
        for trace, (row, _) in zip(members, begun):
            trace.end_ns.append(end)
            self.stream_end[trace.rank, stream] = end
        return row

    def allocate(self, size_bytes):
        """`size_bytes` more (or less) memory on every rank now."""
        for trace in self.run.ranks:
            now = self.memory[trace.rank] = self.memory.get(trace.rank, 0) + size_bytes
            before = trace.reserved_bytes[-1] if len(trace.reserved_bytes) else 0
            for name, value in zip(("device", "ns"), (0, self.host[trace.rank])):
                getattr(trace, f"memory_{name}").append(value)
            trace.allocated_bytes.append(now)
            trace.reserved_bytes.append(max(before, -(-now // 2**21) * 2**21))

    def mark(self, name, depth):
        """Begin (+1) or end (-1) a range on every rank."""
        for trace in self.run.ranks:
            trace.mark_ns.append(self.host[trace.rank])
            trace.mark_name.append(name)
            trace.mark_depth.append(depth)

    def synchronize(self):
        """Every host waits for its device."""
        for trace in self.run.ranks:
            end = max(trace.end_ns)
            if end > self.host[trace.rank]:
                trace.wait_begin_ns.append(self.host[trace.rank])
                trace.wait_end_ns.append(end)
                trace.wait_reason.append("device")
                self.host[trace.rank] = end

    def finish(self) -> Run:
        """The run, as the engine would leave it."""
        for trace in self.run.ranks:
            trace.host_end_ns, trace.exit_code = self.host[trace.rank], 0
        self.run.virtual_ns = max(self.host)
        self.run.wall_s = 12.5
        self.run.stand_ins = {"train.py:17 in log (item)": 6}
        self.run.notes = ["made up"]
        return self.run


def made_up_run(num_steps: int = 3, num_layers: int = 2, world_size: int = 4) -> Run:
    """The run described above."""
    b = Builder(world_size)
    b.allocate(3 * 2**30)
    for step in range(num_steps):
        b.mark(f"step {step}", 1)
        if world_size > 2:
            b.host[2] += 150_000
        _forward(b, num_layers)
        _backward(b, num_layers)
        b.mark("optimizer", 1)
        b.kernel(ADAMW)
        b.mark("optimizer", -1)
        b.collective("all_reduce", 4, 21.0, stream=SCATTER_STREAM, algorithm="tree / LL")
        b.kernel(COPY)
        b.synchronize()
        b.mark(f"step {step}", -1)
    return b.finish()


def _forward(b: Builder, num_layers: int) -> None:
    b.mark("forward", 1)
    b.kernel(EMBEDDING)
    gathered = b.collective("all_gather", 2**28, 680.0, stream=GATHER_STREAM)
    for layer in range(num_layers):
        following = b.collective("all_gather", 2**28, 680.0, stream=GATHER_STREAM) if layer + 1 < num_layers else -1
        b.allocate(2**28)
        for i, number in enumerate((NORM, MM, ATTENTION, MM, ADD, NORM, MM, SILU, MM, ADD)):
            b.kernel(number, after=(gathered,) if i == 0 else ())
        gathered = following
    b.kernel(LOSS)
    b.mark("forward", -1)


def _backward(b: Builder, num_layers: int) -> None:
    b.mark("backward", 1)
    for _ in range(num_layers):
        for number in (MM, MM, SILU, MM, MM, NORM, ATTENTION, MM, MM, NORM):
            last = b.kernel(number)
        scattered = b.collective("reduce_scatter", 2**28, 710.0, stream=SCATTER_STREAM, after=(last,))
        b.allocate(-(2**28))
    b.kernel(ADD, after=(scattered,))
    b.mark("backward", -1)

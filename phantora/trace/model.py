"""One model of an execution graph, filled by the engine and read by exporters, importers, replay and reports.

Per rank it is a table of device work in host issue order, held in flat integer columns (a run has millions of rows).
All times are integer nanoseconds of virtual time.

Traces made by other tools know less than a recorded run. What they lack has a value of its own: a row with stream
NO_STREAM is ordered by its dependencies alone, a row with device HOST_DEVICE is work of the CPU, and start_ns -1 means
that no time was recorded (then the duration is that of the signature).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

NO_STREAM = -1  # in RankTrace.stream
HOST_DEVICE = -1  # in RankTrace.device


@dataclass(slots=True)
class SignatureInfo:
    """One priced operator signature. inputs/outputs: (dtype, shape) pairs. source: measured | interpolated | roofline.

    call: the call as compute.call_json writes it, for another price; '' when it is not known.
    draw: the fields of compute.call.Draw; () when they are not known.
    """

    name: str
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    duration_ns: int
    num_kernels: int
    source: str
    flops: int
    bytes: int
    family: str
    call: str = ""
    draw: tuple[float, ...] = ()


@dataclass(slots=True)
class GroupInfo:
    """A communicator: its name in the script and its global ranks in group order."""

    name: str
    ranks: tuple[int, ...]


@dataclass(slots=True)
class CollectiveInfo:
    """One collective operation (shared by all its members), after matching.

    bytes as in network.operation.CommOperation. start_ns: when the last member arrived; end_ns: the same for all
    members. kernel: collectives launched by one kernel (a coalesced group) share this number. stack: Python stack of
    one caller.
    """

    kind: str
    group: int
    ranks: tuple[int, ...]
    bytes: int
    dtype: str
    root: int = 0
    start_ns: int = -1
    end_ns: int = -1
    algorithm: str = ""
    stack: str = ""
    split_bytes: tuple[tuple[int, ...], ...] | None = None  # as in CommOperation


@dataclass(slots=True)
class RankTrace:
    """What one rank did. Row i of the work columns is the i-th piece of device work that its host issued.

    signature[i] >= 0: a kernel, index into Run.signatures; signature[i] < 0: communication, its collectives are
    work_collectives[-1 - signature[i]] (indices into Run.collectives; several when coalesced).
    start_ns/end_ns are -1 for work that had not run when the run ended. dependency pairs (dependent row, row it waited
    for through an event) come beside the implied order of a stream.

    The wait columns hold what happened to the host's clocks beside issuing, in order for each thread:

        wait_end_ns = max(wait_begin_ns, latest end of wait_rows and wait_peers + wait_delay_ns) (+ a rest that has no
        known cause)

    wait_rows are rows of this rank. wait_peers are points of hosts, (rank, index in that rank's wait columns): the end
    of that entry. wait_reason says what it was: 'stream', 'event', 'device' (a synchronize call), 'host collective',
    'store', 'thread start', 'thread join'; or 'point', a moment at which a host did something that another waits for
    (it joined a host collective, set a key, started a thread), which takes no time. A wait that took no time is there,
    too: on another cluster it may. The first entry of a thread other than 0 says when that thread began.
    """

    rank: int
    device: array = field(default_factory=lambda: array("h"))
    stream: array = field(default_factory=lambda: array("q"))
    signature: array = field(default_factory=lambda: array("q"))
    issue_ns: array = field(default_factory=lambda: array("q"))
    start_ns: array = field(default_factory=lambda: array("q"))
    end_ns: array = field(default_factory=lambda: array("q"))
    thread: array = field(default_factory=lambda: array("h"))  # host thread that issued it; 0: main and autograd's
    work_collectives: list[tuple[int, ...]] = field(default_factory=list)
    dependent: array = field(default_factory=lambda: array("q"))
    dependency: array = field(default_factory=lambda: array("q"))
    # memory: one sample per change (device 0 .. n-1)
    memory_device: array = field(default_factory=lambda: array("h"))
    memory_ns: array = field(default_factory=lambda: array("q"))
    memory_thread: array = field(default_factory=lambda: array("h"))
    allocated_bytes: array = field(default_factory=lambda: array("q"))
    reserved_bytes: array = field(default_factory=lambda: array("q"))
    # host: spans in which the host was blocked, and marks (nvtx ranges)
    wait_begin_ns: array = field(default_factory=lambda: array("q"))
    wait_end_ns: array = field(default_factory=lambda: array("q"))
    wait_reason: list[str] = field(default_factory=list)
    # where it stands among the rows (before row `wait_position`), on which host thread, and the rows whose end it
    # waited for
    wait_position: array = field(default_factory=lambda: array("q"))
    wait_thread: array = field(default_factory=lambda: array("h"))
    wait_rows: list[tuple[int, ...]] = field(default_factory=list)
    wait_peers: list[tuple[tuple[int, int], ...]] = field(default_factory=list)
    wait_delay_ns: array = field(default_factory=lambda: array("q"))
    mark_ns: array = field(default_factory=lambda: array("q"))
    mark_name: list[str] = field(default_factory=list)
    mark_depth: array = field(default_factory=lambda: array("q"))  # +1 push, -1 pop, 0 instant
    host_end_ns: int = 0
    exit_code: int | None = None
    node: array = field(default_factory=lambda: array("Q"))  # id of each row in the file it was read from; empty: none
    comm_streams: dict[int, str] = field(default_factory=dict)  # stream -> group name, for streams that carry collectives


@dataclass(slots=True)
class Run:
    """A recorded run: everything the exporters and the report need. cluster: phantora.cluster.Cluster."""

    command: list[str]
    cluster: object
    world_size: int
    nproc_per_node: int
    signatures: list[SignatureInfo] = field(default_factory=list)
    groups: list[GroupInfo] = field(default_factory=list)
    collectives: list[CollectiveInfo] = field(default_factory=list)
    ranks: list[RankTrace] = field(default_factory=list)
    virtual_ns: int = 0
    wall_s: float = 0.0
    complete: bool = True
    error: str | None = None
    stand_ins: dict[str, int] = field(default_factory=dict)  # where an unknown value was read -> how often
    notes: list[str] = field(default_factory=list)
    contention: tuple[float, float] | None = None  # factors of kernels and collectives beside each other; None: 1
    source: str = "recorded"  # recorded | replayed | chakra | kineto | pytorch-et

"""torch.compile: which kernels a compiled graph launches, what it allocates, and what its results look like."""

import sys

import kernel_probe

kernel_probe.arm()

import torch
import torch.nn.functional as F
from kernel_probe import finish, launches, names, probe, raises
from torch import nn
from torch.utils.checkpoint import checkpoint

from phantora.intercept import session

NATIVE = sys.modules["phantora_native"]
MIB = 1 << 20


def cuda(*shape, **options):
    return torch.empty(*shape, device="cuda", **options)


def launched(function, *args):
    """The calls of the second run, when everything is compiled."""
    with torch.no_grad():
        function(*args)
        launches()
        function(*args)
    return [call for call, _, _ in launches()]


def kinds(calls):
    """'pointwise', 'persistent', ... for fused kernels, the operator for others."""
    return [call.arg("kind") if call.name.startswith("fused::") else call.name.removeprefix("aten::") for call in calls]


def forget():
    torch._dynamo.reset()
    session._session.remarks.clear()


# ------------------------------------------------------------------ fusion


@probe
def a_chain_of_pointwise_operators_is_one_kernel():
    calls = launched(torch.compile(lambda x, y: F.gelu(x) * 2 + y), cuda(256, 1024), cuda(256, 1024))
    assert kinds(calls) == ["pointwise"]
    assert calls[0].arg("bytes") == 3 * 256 * 1024 * 4  # two inputs, one output
    assert (calls[0].arg("rows"), calls[0].arg("columns")) == (256 * 1024, 1)


@probe
def a_broadcast_operand_is_read_once():
    calls = launched(torch.compile(lambda x, b: (x + b).relu()), cuda(256, 1024), cuda(1024))
    assert kinds(calls) == ["pointwise"]
    assert calls[0].arg("bytes") == (2 * 256 * 1024 + 1024) * 4


@probe
def operators_side_by_side_share_what_they_read():
    calls = launched(torch.compile(lambda x: (x + 1, x * 2)), cuda(512, 512))
    assert kinds(calls) == ["pointwise"]
    assert calls[0].arg("bytes") == 3 * 512 * 512 * 4


@probe
def a_reduction_takes_what_stands_before_and_behind_it():
    calls = launched(torch.compile(lambda x: torch.softmax(x * 2, -1).half()), cuda(256, 1000))
    assert kinds(calls) == ["persistent"]
    assert calls[0].arg("bytes") == 256 * 1000 * (4 + 2)
    assert (calls[0].arg("rows"), calls[0].arg("columns")) == (256, 1000)


@probe
def norms_are_one_kernel():
    weight = cuda(768)
    for norm in (lambda x: F.layer_norm(x, (768,), weight), lambda x: F.rms_norm(x, (768,), weight)):
        assert kinds(launched(torch.compile(norm), cuda(64, 768))) == ["persistent"]


@probe
def long_rows_are_walked():
    assert kinds(launched(torch.compile(lambda x: x.sum(-1)), cuda(512, 50000))) == ["looped"]


@probe
def products_stay_products():
    w, v = cuda(256, 1024), cuda(1024, 256)
    calls = launched(torch.compile(lambda x: F.gelu(x @ w) @ v), cuda(64, 256))
    assert kinds(calls) == ["mm", "pointwise", "mm"]


@probe
def views_are_free():
    assert kinds(launched(torch.compile(lambda x: x.t().reshape(2, -1).view(-1) if False else x.t()), cuda(8, 8))) == []


@probe
def an_optimizer_is_a_few_kernels():
    parameters = [nn.Parameter(cuda(100 + i)) for i in range(20)]
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    optimizer = torch.optim.SGD(parameters, lr=0.1, foreach=True)
    step = torch.compile(optimizer.step)
    calls = launched(step)
    assert set(kinds(calls)) == {"foreach"} and len(calls) <= 2, kinds(calls)
    moved = sum(call.arg("bytes") for call in calls)
    assert moved == 3 * 4 * sum(p.numel() for p in parameters), moved


@probe
def cross_entropy_keeps_no_logarithms():
    forget()
    logits, labels = cuda(512, 32000, requires_grad=True), torch.zeros(512, dtype=torch.int64, device="cuda")
    loss = torch.compile(F.cross_entropy)
    loss(logits, labels)
    before = torch.cuda.memory_allocated()
    value = loss(logits, labels)
    kept = torch.cuda.memory_allocated() - before
    assert kept < MIB, kept  # eager code keeps 512 x 32000 numbers
    value.backward()
    assert logits.grad.shape == logits.shape


# ------------------------------------------------------------------ memory


def peak_bytes(function, *args):
    """Peak of allocated memory above what was there before."""
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = function(*args)
        peak = torch.cuda.max_memory_allocated() - before
        kept = torch.cuda.memory_allocated() - before
        del result
    return peak, kept


@probe
def what_stays_inside_a_group_is_never_allocated():
    def chain(x):
        return ((x + 1) * 2).relu().sigmoid()

    x = cuda(1024, 1024)  # 4 MiB
    with torch.no_grad():
        assert peak_bytes(chain, x) == (8 * MIB, 4 * MIB)
        assert peak_bytes(torch.compile(chain), x) == (4 * MIB, 4 * MIB)


@probe
def buffers_are_freed_at_their_last_use_and_reused():
    weights = [cuda(1024, 1024) for _ in range(4)]

    def layers(x):
        for weight in weights:
            x = (x @ weight).relu()  # in place of the product
        return x

    with torch.no_grad():
        assert peak_bytes(torch.compile(layers), cuda(1024, 1024)) == (8 * MIB, 4 * MIB)


@probe
def the_partitioner_recomputes_instead_of_saving():
    def chain(x):
        return x.sigmoid().exp().tanh().sigmoid()

    x = cuda(1024, 1024, requires_grad=True)
    assert peak_bytes(chain, x)[1] == 16 * MIB  # each result is kept, the last is the output
    assert peak_bytes(torch.compile(chain), x)[1] == 4 * MIB  # the output; the rest is computed again from x


# ------------------------------------------------------------------ results


def described(tensor):
    return (tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(100, 64)
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, ids):
        x = self.table(ids)
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        q = x.view(*ids.shape, 4, 16).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).flatten(2)


@probe
def results_and_gradients_look_as_in_eager_code():
    forget()
    ids = torch.zeros(4, 32, dtype=torch.int64, device="cuda")
    image = cuda(2, 8, 16, 16).to(memory_format=torch.channels_last)
    convolution = nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU())
    for net, data in ((Net(), ids), (convolution.to(memory_format=torch.channels_last), image)):
        net = net.cuda()
        seen = []
        for run in (net, torch.compile(net)):
            for dtype in (torch.float32, torch.bfloat16):
                with torch.autocast("cuda", dtype=dtype, enabled=dtype is torch.bfloat16):
                    output = run(data)
                output.float().sum().backward()
                seen.append([described(output), *(described(p.grad) for p in net.parameters())])
                net.zero_grad()
        assert seen[:2] == seen[2:], seen


@probe
def results_have_no_known_contents():
    forget()
    known = torch.ones(4, device="cuda")
    compiled = torch.compile(lambda x: x + 1)
    compiled(known)
    assert not NATIVE.shadow_has(compiled(known))

    def count(x):
        x.add_(1)

    count = torch.compile(count)
    count(known)
    assert not NATIVE.shadow_has(known)


# ------------------------------------------------------------------ ways to compile


@probe
def graph_breaks_split_the_graph():
    forget()
    torch._dynamo.utils.counters.clear()

    def broken(x):
        x = x.relu()
        torch._dynamo.graph_break()
        return x + 1

    assert kinds(launched(torch.compile(broken), cuda(100))) == ["pointwise", "pointwise"]
    assert sum(torch._dynamo.utils.counters["graph_break"].values()) == 1
    raises(torch._dynamo.exc.Unsupported, "graph_break", lambda: torch.compile(broken, fullgraph=True)(cuda(100)))


@probe
def the_device_itself_is_not_traced():
    """Eager operators between two graphs run Python of ours, which Dynamo must not compile."""
    forget()
    torch._dynamo.utils.counters.clear()

    def mixed(x):
        x = x.relu()
        torch._dynamo.graph_break()
        x[x > 0] = 1.0
        torch._dynamo.graph_break()
        return torch.compiler.disable(lambda y: F.conv1d(y[None, None], cuda(1, 1, 3)))(x)

    compiled = torch.compile(mixed)
    compiled(cuda(50)), compiled(cuda(50))
    found = torch._dynamo.utils.counters
    assert found["stats"]["unique_graphs"] <= 3, found["stats"]
    assert not any("phantora" in str(key) for group in found.values() for key in group)


@probe
def new_shapes_are_compiled_again_or_symbolic():
    for dynamic, num_graphs in ((False, 3), (None, 2), (True, 1)):
        forget()
        torch._dynamo.utils.counters.clear()
        compiled = torch.compile(lambda x: F.gelu(x) + 1, dynamic=dynamic)
        moved = []
        for length in (100, 200, 300):
            launches()
            assert compiled(cuda(length, 8)).shape == (length, 8)
            moved += [call.arg("bytes") for call, _, _ in launches()]
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == num_graphs
        assert moved == [2 * 4 * 8 * length for length in (100, 200, 300)], moved


@probe
def decorators_methods_and_optimized_modules():
    forget()

    @torch.compile
    def doubled(x):
        return x * 2 + 1

    assert kinds(launched(doubled, cuda(10))) == ["pointwise"]
    net = nn.Sequential(nn.LayerNorm(64)).cuda()
    net.compile()
    assert kinds(launched(net, cuda(8, 64))) == ["persistent"]
    assert kinds(launched(torch.compile(nn.GELU()), cuda(8, 64))) == ["pointwise"]
    with torch.compiler.set_stance("force_eager"):
        assert names() == [] and kinds(launched(doubled, cuda(10))) == ["mul", "add"]


@probe
def recomputation_inside_a_region():
    forget()
    net = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).cuda()
    x = cuda(512, 256, requires_grad=True)
    plain = torch.compile(lambda y: net(y))
    recomputed = torch.compile(lambda y: checkpoint(net, y, use_reentrant=False))
    kept = []
    for run in (plain, recomputed):
        for _ in range(2):
            before = torch.cuda.memory_allocated()
            output = run(x)
            found = torch.cuda.memory_allocated() - before
            launches()
            output.sum().backward()
            products = sum(name in ("mm", "addmm") for name in names())
            del output
        kept.append((found, products))
    assert kept[0][0] - kept[1][0] >= 512 * 1024 * 4, kept  # what is behind the first product is not kept
    assert kept[1][1] == kept[0][1] + 1, kept  # and the product is computed again


@probe
def other_backends_run():
    for backend in ("eager", "aot_eager", "cudagraphs"):
        forget()
        compiled = torch.compile(lambda x: x.relu() + 1, backend=backend)
        assert kinds(launched(compiled, cuda(100))) == ["relu", "add"], backend


@probe
def what_inductor_cannot_do_here_runs_as_eager_operators():
    forget()
    from torch._inductor.graph import GraphLowering

    run = GraphLowering.run

    def fail(*args):
        raise NotImplementedError("no lowering for this")

    GraphLowering.run = fail
    try:
        x = cuda(128, 128, requires_grad=True)
        compiled = torch.compile(lambda y: (y * 3.5).relu() @ y)
        launches()
        compiled(x).sum().backward()
        found = names()
    finally:
        GraphLowering.run = run
    assert found[:3] == ["mul", "relu", "mm"] and x.grad.shape == x.shape, found
    said = [remark for remark in session._session.remarks if "runs as eager operators" in remark]
    assert said and "no lowering for this" in said[0], session._session.remarks


@probe
def max_autotune_keeps_the_products_and_says_so():
    forget()
    w = cuda(256, 256)
    compiled = torch.compile(lambda x: (x @ w).relu(), mode="max-autotune-no-cudagraphs")
    assert kinds(launched(compiled, cuda(64, 256))) == ["mm", "pointwise"]
    assert any("max-autotune" in remark for remark in session._session.remarks)


# ------------------------------------------------------------------ host time and CUDA graphs


def host_ns(function, *args):
    begin_ns = NATIVE.now_ns()
    result = function(*args)
    del result
    return NATIVE.now_ns() - begin_ns


@probe
def launches_cost_less_than_in_eager_code():
    forget()
    NATIVE.set_call_cost_ns(47, 5, 5)  # a thousandth of the 5 us of a launch
    with torch.no_grad():
        compiled = torch.compile(lambda xs: [x + 1 for x in xs])
        shapes = [cuda(64 + 8 * i) for i in range(40)]
        times = [host_ns(compiled, shapes) for _ in range(4)]
        assert times[2] == times[3]
        eager_ns = host_ns(lambda xs: [x + 1 for x in xs], shapes)
    assert times[3] < eager_ns == 40 * 5000, (times, eager_ns)


@probe
def a_graph_is_replayed_for_the_cost_of_one_launch():
    forget()
    with torch.no_grad():
        xs = [cuda(64 + 8 * i) for i in range(40)]
        plain = torch.compile(lambda ts: [t * 3 for t in ts])
        graphed = torch.compile(lambda ts: [t * 3 for t in ts], mode="reduce-overhead")
        for _ in range(4):
            plain_ns, graphed_ns = host_ns(plain, xs), host_ns(graphed, xs)
        launches()
        outputs = graphed(xs)
    fused = [call for call, _, _ in launches() if call.name.startswith("fused::")]
    assert len(outputs) == len(fused) == 40  # the same kernels; the inputs are copied to fixed places
    assert graphed_ns < plain_ns, (graphed_ns, plain_ns)


@probe
def a_graph_keeps_its_fixed_inputs():
    forget()
    weight = nn.Parameter(cuda(256, 256))
    graphed = torch.compile(lambda x: (x @ weight).relu(), mode="reduce-overhead")
    kept = []
    with torch.no_grad():
        for _ in range(4):
            before = torch.cuda.memory_allocated()
            x = cuda(1024, 256)
            graphed(x)
            del x
            kept.append(torch.cuda.memory_allocated() - before)
    assert kept == [0, 0, MIB, 0], kept  # one copy of the input, from the first replay on


finish()

"""What every parallelism sends, holds and loses to bubbles, against the formulas of the papers.

Sent bytes are what one rank sends in one step at the least that an algorithm must (measures.sent_bytes): of a buffer
of B bytes among n ranks, 2 (n - 1) / n B in an all-reduce and (n - 1) / n B in an all-gather, reduce-scatter or all-to-all.
Messages below 4 KiB (norms, losses) are not counted.

psi is the number of parameters, b the micro batch, s the sequence, h the width, L the layers, m the micro batches of a
step; t, p, c and n are the ranks of tensor, pipeline, context and data parallelism. Sources:

    Rajbhandari  ZeRO: memory optimizations toward training trillion parameter models, 2020
    Zhao         PyTorch FSDP: experiences on scaling fully sharded data parallel, 2023
    Shoeybi      Megatron-LM, 2019
    Narayanan    Efficient large-scale language model training on GPU clusters using Megatron-LM, 2021
    Korthikanti  Reducing activation recomputation in large transformer models, 2022
    Liu          Ring attention with blockwise transformers, 2023
    Lepikhin     GShard, 2021

cuBLAS's workspaces (64 MiB in two threads, whatever the model) are switched off, so that states can be compared.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from measures import Span, busy_ns, collectives_of, memory_at, peak_within, sent_bytes, span, volume_sent
from recording import record

from phantora.trace.model import Run

SCRIPTS = Path(__file__).parent / "scripts"
Recorder = Callable[..., Run]
needs_megatron = pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None, reason="needs megatron-core (requirements/frameworks.txt)"
)
needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="needs deepspeed (requirements/frameworks.txt)"
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    """record(number of ranks, script, arguments), once for each combination."""
    runs: dict[tuple, Run] = {}
    # The formulas know of no clock: idle stages of a pipeline would let the others' rise.
    steady = tmp_path_factory.mktemp("cluster") / "steady.toml"
    steady.write_text('base = "hgx-h200"\n[gpu]\npower_w = 0\n')

    def run(nproc: int, script: str, *arguments: str) -> Run:
        key = (nproc, script, arguments)
        if key not in runs:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
                patch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
                runs[key] = record(
                    tmp_path_factory.mktemp("run"), nproc, str(SCRIPTS / script), *arguments, cluster=str(steady)
                )
        return runs[key]

    return run


def kinds(run: Run, within: Span, group: tuple[int, ...]) -> Counter[tuple[str, int]]:
    """(kind, bytes) -> how often within a span, in one group."""
    return Counter((c.kind, c.bytes) for c in collectives_of(run, 0, within) if c.ranks == group)


# ------------------------------------------------------------------ data parallelism: eight layers of 1024 x 1024

SQUARE = 8 * 1024 * 1024  # psi
FLOAT_BYTES = 4


@pytest.mark.parametrize(
    ("way", "sent", "state"),
    [
        ("ddp", 2, lambda n: 16),
        ("keep", 2, lambda n: 16 / n),
        ("free", 3, lambda n: 16 / n),
    ],
)
def test_data_parallelism_in_torch(
    recorded: Recorder, way: str, sent: int, state: Callable[[int], float]
) -> None:
    """Rajbhandari, section 7: plain data parallelism and gradients sharded (FSDP2 that keeps what it has gathered) send
    2 psi, parameters sharded as well 3 psi. Section 3.1: 16 bytes of state for each parameter with Adam, here 4 of
    parameter, 4 of gradient, 8 of moments; figure 1: 16 / n where all is sharded. (Exact: within 1 %.)"""
    run, n = recorded(2, "sharded_layers.py", way), 2
    assert volume_sent(run, 0, span(run, "step")) == sent * SQUARE * FLOAT_BYTES * (n - 1) / n
    update = span(run, "update")
    assert memory_at(run, 0, update.begin_ns) == pytest.approx(state(n) * SQUARE, rel=0.01)


def test_fsdp_holds_two_layers_beside_its_shards(recorded: Recorder) -> None:
    """Zhao, section 3.2.1: the peak is the sharded state and the largest unsharded units: of the layer that computes and
    the next one that is gathered the parameters, and the gradient of one before and one in reduce-scatter. State here
    is 16 psi / n: four layers of 4 bytes more at most."""
    run, n = recorded(2, "sharded_layers.py", "free"), 2
    peak, layer = peak_within(run, 0, span(run, "step")), SQUARE // 8 * FLOAT_BYTES
    assert 16 * SQUARE / n <= peak <= 16 * SQUARE / n + 4 * layer


def test_hybrid_sharding_reduces_shards_among_replicas(recorded: Recorder) -> None:
    """Zhao, section 3.2.2: within a shard group of F ranks as full sharding; the gradients' shards, psi / F, are then
    all-reduced among the replicas."""
    run, size = recorded(4, "sharded_layers.py", "free", "2"), SQUARE * FLOAT_BYTES
    step = span(run, "step")
    assert volume_sent(run, 0, step, group=(0, 1)) == 3 * size * 1 / 2
    assert volume_sent(run, 0, step, group=(0, 2)) == 2 * (size / 2) * 1 / 2
    assert memory_at(run, 0, span(run, "update").begin_ns) == pytest.approx(16 * SQUARE / 2, rel=0.01)


# ------------------------------------------------------------------ ZeRO: eight layers in 16 bits, with DeepSpeed

ZERO_WIDTH = 2048
ZERO_PSI = 8 * ZERO_WIDTH * ZERO_WIDTH
BUCKET = ZERO_PSI // 2 * 2  # bytes of reduce_bucket_size, half of the gradients, which stage 3 keeps


@needs_deepspeed
@pytest.mark.parametrize(
    ("stage", "options", "gathered", "reduced", "state"),
    [
        (0, (), 0, {"all_reduce": 1}, lambda n: 2 + 2 + 12),
        (1, (), 1, {"all_reduce": 1}, lambda n: 2 + (2 + 12) / n),
        (2, ("--reduce-to-owners",), 1, {"reduce": 1}, lambda n: 2 + (2 + 12) / n),
        (3, (), 2, {"reduce_scatter": 1}, lambda n: (2 + 2 + 12) / n + BUCKET / ZERO_PSI),
    ],
)
def test_zero_with_deepspeed(
    recorded: Recorder, stage: int, options: tuple[str, ...], gathered: int, reduced: dict[str, int],
    state: Callable[[int], float],
) -> None:  # fmt: skip
    """Rajbhandari, section 7.1 and 7.2: of 2-byte parameters and gradients, psi is reduced, and psi gathered after the
    step (stages 1, 2), or before each forward and each backward pass (stage 3). How DeepSpeed 0.19 reduces is its own
    choice: buckets by all-reduce, unless use_multi_rank_bucket_allreduce is false.

    Memory: figure 1 with K = 12: stage 0 2 + 2 + K, stage 2 2 + (2 + K) / n, stage 3 (2 + 2 + K) / n, before the update
    (exact: within 1 %). DeepSpeed's stage 1 keeps a partition of the gradients only, as stage 2 does."""
    run = recorded(
        2, "deepspeed_train.py", "--width", str(ZERO_WIDTH), "--accumulate", "1", "--stage", str(stage), *options
    )
    batch, update = span(run, "micro batch"), span(run, "update")
    moved: Counter[str] = Counter()
    for collective in collectives_of(run, 0, batch):
        if collective.bytes >= 4096:
            moved[collective.kind] += collective.bytes
    expected = {kind: times * 2 * ZERO_PSI for kind, times in {"all_gather": gathered, **reduced}.items() if times}
    assert moved == expected
    assert memory_at(run, 0, update.begin_ns) == pytest.approx(state(2) * ZERO_PSI, rel=0.01)


# ------------------------------------------------------------------ Megatron's GPT: width 1024, two layers

B, S, H, L, M = 2, 1024, 1024, 2, 2
HEADS, GROUPS, FEED, VOCABULARY = 16, 8, 2816, 2048
ACTIVATION = B * S * H * 2  # bytes
GPT = (
    "--te", "--hidden", str(H), "--heads", str(HEADS), "--groups", str(GROUPS), "--feed", str(FEED),
    "--sequence", str(S),
)  # fmt: skip
BOTH = (0, 1)


def gpt_psi(t: int = 1, experts: int = 0) -> int:
    """Parameters of a rank among t tensor-parallel ones; experts: how many of them it holds (each of half the width)."""
    attention = H * H * 2 + H * (H * GROUPS // HEADS) * 2
    feed = 3 * H * (FEED // 2) * experts if experts else 3 * H * FEED
    norms = 2 * H * L + H
    return (2 * VOCABULARY * H + L * attention) // t + L * feed // t + norms


def gpt(recorded: Recorder, nproc: int, *arguments: str) -> tuple[Run, Span]:
    """The run, and rank 0's forward and backward passes of its last step."""
    run = recorded(nproc, "megatron_core.py", *GPT, *arguments)
    return run, span(run, "forward and backward")


def activations(run: Run, passes: Span, rank: int = 0) -> int:
    """Bytes that a rank held at its peak beside parameters, gradients and optimizer."""
    return peak_within(run, rank, passes) - memory_at(run, rank, passes.begin_ns)


@needs_megatron
def test_the_distributed_optimizer_is_zero_1(recorded: Recorder) -> None:
    """Rajbhandari, section 7.1: gradients (here float32) reduce-scattered, parameters (bfloat16) gathered, once a step,
    whatever m. Memory: 2 of parameter, 4 of gradient, 12 of master copy and moments, of which the distributed optimizer
    shards the last (table in Megatron-LM's docs/source/api-guide/dist_optimizer.md: 18, and 6 + 12 / n)."""
    (plain, alone), (sharded, passes) = gpt(recorded, 1), gpt(recorded, 2, "--distributed-optimizer")
    step = Span(passes.begin_ns, sharded.virtual_ns)
    assert volume_sent(sharded, 0, step) == pytest.approx((4 + 2) * gpt_psi() * 1 / 2, rel=0.002)  # padded buckets
    assert memory_at(plain, 0, alone.begin_ns) == pytest.approx(18 * gpt_psi(), rel=0.02)
    assert memory_at(sharded, 0, passes.begin_ns) == pytest.approx((6 + 12 / 2) * gpt_psi(), rel=0.02)


@needs_megatron
def test_tensor_parallelism_reduces_four_times_a_layer(recorded: Recorder) -> None:
    """Shoeybi, section 3: two all-reduces of b s h forward and two backward in each layer; with a split vocabulary one
    of the embedding's output forward and one of the output layer's input gradient backward; and of the loss three
    numbers for each token."""
    run, passes = gpt(recorded, 2, "--tp", "2")
    found = kinds(run, passes, BOTH)
    assert found == {("all_reduce", ACTIVATION): M * (4 * L + 2), ("all_reduce", B * S * 4): M * 3}
    t = 2
    sent = volume_sent(run, 0, passes, group=BOTH, at_least=ACTIVATION)
    assert sent == M * (4 * L + 2) * ACTIVATION * 2 * (t - 1) / t
    assert memory_at(run, 0, passes.begin_ns) == pytest.approx(18 * gpt_psi(t), rel=0.05)


@needs_megatron
def test_sequence_parallelism_sends_as_much_and_shards_all_activations(recorded: Recorder) -> None:
    """Korthikanti, section 4.2.2: each all-reduce becomes a reduce-scatter and an all-gather, which send as much; the
    backward pass gathers the inputs of the two column-parallel products again, and that of the output layer. Equation 4:
    all activations of a layer are divided by t (equation 2, without sequence parallelism: not all)."""
    run, passes = gpt(recorded, 2, "--tp", "2", "--sp")
    found = kinds(run, passes, BOTH)
    assert found["reduce_scatter", ACTIVATION] == M * (4 * L + 2)
    assert found["all_gather", ACTIVATION] == M * (4 * L + 2) + M * (2 * L + 1)
    (plain, alone), (split, between) = gpt(recorded, 1), gpt(recorded, 2, "--tp", "2")
    assert activations(run, passes) == pytest.approx(activations(plain, alone) / 2, rel=0.1)
    assert activations(run, passes) < activations(split, between) < activations(plain, alone)


@needs_megatron
def test_context_parallelism_passes_keys_and_values_round(recorded: Recorder) -> None:
    """Liu, section 3.1: keys and values make c - 1 hops forward. Backward they make c - 1 hops again, and their
    gradients c - 1 to where they belong. Activations are those of s / c tokens."""
    c = 4
    run, passes = gpt(recorded, c, "--cp", str(c))
    keys_and_values = 2 * B * (S // c) * GROUPS * (H // HEADS) * 2
    sent = sum(sent_bytes(x, 0) for x in collectives_of(run, 0, passes) if x.kind == "send_recv")
    assert sent == M * L * 3 * (c - 1) * keys_and_values
    plain, alone = gpt(recorded, 1)
    assert activations(run, passes) == pytest.approx(activations(plain, alone) / c, rel=0.15)


@needs_megatron
def test_expert_parallelism_exchanges_each_choice_of_each_token(recorded: Recorder) -> None:
    """Lepikhin, section 3.2: tokens go to their experts and come back, forward and backward: four all-to-alls a layer
    of k b s h, of which (n - 1) / n leaves the rank when routing is balanced. A rank holds E / n experts."""
    n, experts, k = 2, 4, 2
    run, passes = gpt(recorded, n, "--ep", str(n), "--experts", str(experts))
    chosen = [c for c in collectives_of(run, 0, passes) if c.kind == "all_to_all" and c.bytes == k * ACTIVATION]
    assert len(chosen) == M * L * 4
    assert sum(sent_bytes(c, 0) for c in chosen) == M * L * 4 * k * ACTIVATION * (n - 1) / n
    assert memory_at(run, 0, passes.begin_ns) == pytest.approx(18 * gpt_psi(experts=experts // n), rel=0.05)


# ------------------------------------------------------------------ pipelines of four even stages, products dominate

P, PIPELINE_M, PIPELINE_ACTIVATION = 4, 8, 4096 * 8192 * 2
LARGE = (
    "--te", "--pp", str(P), "--hidden", "8192", "--heads", "64", "--groups", "64", "--feed", "22016",
    "--vocabulary", "64", "--sequence", "4096", "--micro-batch", "1", "--micro-batches", str(PIPELINE_M),
)  # fmt: skip


def pipeline(recorded: Recorder, layers: int, *arguments: str) -> tuple[Run, list[Span]]:
    run = recorded(P, "megatron_core.py", *LARGE, "--layers", str(layers), *arguments)
    return run, [span(run, "forward and backward", rank) for rank in range(P)]


def bubble(run: Run, passes: list[Span]) -> list[float]:
    """Of each rank: time from the first stage's begin to the last one's end beyond its kernels', as a share of
    theirs."""
    whole = Span(min(s.begin_ns for s in passes), max(s.end_ns for s in passes))
    return [(whole.end_ns - whole.begin_ns) / busy_ns(run, rank, whole) - 1 for rank in range(P)]


def borders_crossed(run: Run, passes: list[Span]) -> int:
    sent = [c for c in run.collectives if c.kind == "send_recv" and c.bytes == PIPELINE_ACTIVATION]
    return sum(c.start_ns >= passes[0].begin_ns for c in sent)


@needs_megatron
def test_one_forward_one_backward(recorded: Recorder) -> None:
    """Narayanan, section 2.2.1: the bubble is (p - 1) / m of the ideal time (transfers and launches add to it: within
    5 %); stage i holds the activations of at most p - i micro batches. Each micro batch crosses each of the p - 1
    borders forth and back."""
    run, passes = pipeline(recorded, 8)
    assert bubble(run, passes) == pytest.approx([(P - 1) / PIPELINE_M] * P, rel=0.05)
    assert borders_crossed(run, passes) == PIPELINE_M * 2 * (P - 1)
    held = [activations(run, passes[rank], rank) for rank in range(P)]
    one = held[0] - held[1]
    assert [held[rank] - held[rank + 1] for rank in range(P - 1)] == pytest.approx([one] * (P - 1), rel=0.05)
    assert held == pytest.approx([one * (P - rank) for rank in range(P)], rel=0.15)  # and the layer's temporaries


@needs_megatron
def test_interleaved_stages(recorded: Recorder) -> None:
    """Narayanan, section 2.2.2: with v chunks a stage the bubble is (p - 1) / (v m), twice the transfers make it longer
    (within 8 %); p v - 1 borders are crossed. Korthikanti, section 4.2.3: the first stage holds the activations of
    L (1 + (p - 1) / (p v)) layers, not of L."""
    v = 2
    run, passes = pipeline(recorded, 16, "--vpp", str(v))
    assert bubble(run, passes) == pytest.approx([(P - 1) / (v * PIPELINE_M)] * P, rel=0.08)
    assert borders_crossed(run, passes) == PIPELINE_M * 2 * (P * v - 1)
    plain, plain_passes = pipeline(recorded, 8)
    ratio = activations(run, passes[0]) / 16 / (activations(plain, plain_passes[0]) / 8)
    assert ratio == pytest.approx(1 + (P - 1) / (P * v), rel=0.05)

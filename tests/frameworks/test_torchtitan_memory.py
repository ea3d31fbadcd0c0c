"""torchtitan 0.3.0: peak memory falls as sharding says, and llama3_8b at its full size needs what its states and activations are."""

from __future__ import annotations

from recording import communicated, peak_allocated_bytes
from titan_runs import D, LAYERS, PARAMETERS, STEPS, needs_torchtitan, titan

pytestmark = needs_torchtitan


def test_fully_sharded_states_fall_with_the_number_of_ranks() -> None:
    """Rajbhandari et al. (2020), ZeRO, section 5: on n ranks each has 1/n of the parameters, of their gradients and of Adam's two
    moments, here 4 bytes each. Where memory is highest some or all of the gradients exist; all else is the same on 2 and 4 ranks.
    """
    fallen = peak_allocated_bytes(titan(2)) - peak_allocated_bytes(titan(4))
    one_copy = 4 * PARAMETERS * (1 / 2 - 1 / 4)
    assert 3 * one_copy <= fallen <= 4 * one_copy * 1.01


def test_tensor_parallel_halves_what_it_splits() -> None:
    """Korthikanti et al. (2022), section 4: with sequence parallelism both parameters and activations are split, all but the norms."""
    alone, split = peak_allocated_bytes(titan(1)), peak_allocated_bytes(titan(2, "tensor-parallel-degree=2"))
    norms = (2 * LAYERS + 1) * D
    one_copy = 4 * (PARAMETERS - norms) / 2
    assert alone / 2 < split < alone - 3 * one_copy


def test_llama3_8b_on_eight_ranks() -> None:
    """The full model with sequences of 8192, FSDP over 4 x TP over 2: s = 8192, d = 4096, 32 layers, k = 1024 (8 heads of keys), f = 14336,
    vocabulary 128256.

    Communication: Korthikanti et al. (2022), section 4.2.2, and Zhao et al. (2023), section 3.2, as for the debug model; of each layer a
    rank has half of the products and all of the norms.

    Memory: 16 bytes for each of a rank's parameters after the last step (ZeRO, Rajbhandari et al., 2020, section 3.1: fp32 parameters,
    gradients and two moments), to 2 %: masks, tables and workspaces come to 0.17 GB. Memory is highest at the end of a later
    forward pass, without gradients of layers: 12 bytes, and of each layer at least what SelectiveAC keeps (bf16): its input, both
    reduce-scattered outputs, attention's output (s d / 2 each), queries with keys and values, w1's and w2's products; at most all five
    products, inputs and outputs of both norms, rotated queries and keys, and three steps of SwiGLU.
    """
    sequence, d, k, f, vocabulary, layers = 8192, 4096, 1024, 14336, 128256, 32
    products, norms = 2 * d * d + 2 * d * k + 3 * d * f, 2 * d
    parameters = (layers * products + 2 * vocabulary * d) // 8 + (layers * norms + d) // 4
    options = ("--hf-assets-path", "./tests/assets/tokenizer", "--dataloader.dataset", "c4_test")
    degrees = ("tensor-parallel-degree=2", "data-parallel-shard-degree=4")
    run = titan(8, *degrees, config="llama3_8b", more=options, batch=1, sequence=sequence)

    for pair in ((0, 1), (2, 3), (4, 5), (6, 7)):
        assert communicated(run, "all_gather", pair)[2 * sequence * d] == STEPS * (6 * layers + 2)
        assert communicated(run, "reduce_scatter", pair)[2 * sequence * d] == STEPS * (4 * layers + 2)
    for shards in ((0, 2, 4, 6), (1, 3, 5, 7)):
        layer, embedding = products // 2 + norms, vocabulary * d // 2
        assert communicated(run, "all_gather", shards)[2 * layer] == STEPS * 2 * layers
        assert communicated(run, "all_gather", shards)[2 * embedding] == STEPS * 2
        assert communicated(run, "reduce_scatter", shards)[4 * layer] == STEPS * layers
        assert communicated(run, "reduce_scatter", shards)[4 * embedding] == STEPS * 2  # that of the head is as large

    kept = 2 * sequence * (4 * d // 2 + (d + 2 * k) // 2 + f // 2 + d)
    at_most = 2 * sequence * (8 * d // 2 + 2 * (d + 2 * k) // 2 + 5 * f // 2 + 2 * d)
    for rank in range(8):
        after_last_step = run.ranks[rank].allocated_bytes[-1]
        assert abs(after_last_step / (16 * parameters) - 1) < 0.02
        assert 12 * parameters + layers * kept < peak_allocated_bytes(run, rank) < 16 * parameters + layers * at_most

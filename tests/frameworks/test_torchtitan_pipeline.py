"""torchtitan 0.3.0: pipeline and expert parallelism, alone and together."""

from __future__ import annotations

import pytest
from recording import communicated, kernels
from titan_runs import ACTIVATIONS, BATCH, D, SEQUENCE, STEPS, WITHOUT_GRAPHS, needs_torchtitan, titan

pytestmark = needs_torchtitan

# deepseek_v3_debugmodel: 1 dense layer and 5 of experts, 3 of which each token visits.
MOE_LAYERS, CHOSEN, EXPERTS = 5, 3, 8
DEEPSEEK = {"model": "deepseek_v3", "config": "deepseek_v3_debugmodel", "more": (WITHOUT_GRAPHS,)}


@pytest.mark.parametrize(("schedule", "stages"), [("1F1B", 2), ("Interleaved1F1B", 4)])
def test_pipeline(schedule: str, stages: int) -> None:
    """Narayanan et al. (2021), section 2.2: activations (bf16) cross each boundary of stages once forward, their gradients once
    backward, for each microbatch (here of one sequence).
    """
    run = titan(2, "pipeline-parallel-degree=2", f"pipeline-parallel-schedule={schedule}", more=(WITHOUT_GRAPHS,))
    assert communicated(run, "send_recv")[ACTIVATIONS // BATCH] == STEPS * BATCH * 2 * (stages - 1)


def test_expert_parallel() -> None:
    """GShard (Lepikhin et al., 2021, section 3.2): tokens go to the experts and back, and so do the gradients: 4 all-to-alls of b s k d
    values per layer; counts of the experts before.
    """
    run = titan(2, "expert-parallel-degree=2", **DEEPSEEK)
    assert communicated(run, "all_to_all")[2 * BATCH * SEQUENCE * CHOSEN * D] == STEPS * MOE_LAYERS * 4
    assert communicated(run, "all_to_all")[8 * EXPERTS] == STEPS * MOE_LAYERS


def test_data_times_expert_parallel() -> None:
    """On 4 ranks experts lie on pairs, each pair with half of them twice. The tokens of a rank stay within its pair; a pair's experts
    are sharded over the ranks that have the same ones, all other parameters over all (torchtitan's mesh: efsdp = dp / ep).
    """
    run = titan(4, "expert-parallel-degree=2", **DEEPSEEK)
    for pair in ((0, 1), (2, 3)):
        assert communicated(run, "all_to_all", pair)[2 * BATCH * SEQUENCE * CHOSEN * D] == STEPS * MOE_LAYERS * 4
    experts = EXPERTS // 2 * 3 * D * 256  # three products of d x 256 each
    for same in ((0, 2), (1, 3)):
        assert communicated(run, "all_gather", same)[2 * experts] == STEPS * 2 * MOE_LAYERS
        assert communicated(run, "reduce_scatter", same)[4 * experts] == STEPS * MOE_LAYERS


def test_pipeline_times_tensor_times_expert_parallel() -> None:
    """8 ranks: two stages of 2 and 3 expert layers on 4 ranks each, whose sequences are halved by tensor parallelism and whose experts
    lie on all 4. Before the first step torch.distributed.pipelining runs a microbatch to learn shapes (stage.py,
    _forward_metadata_inference and the backward one, which the first stage has no need of).
    """
    degrees = ("pipeline-parallel-degree=2", "tensor-parallel-degree=2", "expert-parallel-degree=4")
    run = titan(8, *degrees, **DEEPSEEK)
    tokens = 2 * (SEQUENCE // 2) * CHOSEN * D  # one sequence is a microbatch
    microbatches = STEPS * BATCH
    assert communicated(run, "all_to_all", (0, 1, 2, 3))[tokens] == 2 * (4 * microbatches + 2)
    assert communicated(run, "all_to_all", (4, 5, 6, 7))[tokens] == 3 * (4 * microbatches + 4)
    for rank in range(4):
        there, back = (rank, rank + 4), (rank + 4, rank)
        half = 2 * (SEQUENCE // 2) * D
        assert communicated(run, "send_recv", there)[half] == communicated(run, "send_recv", back)[half] == microbatches
    assert kernels(run, 0)["aten::_grouped_mm"] < kernels(run, 4)["aten::_grouped_mm"]

"""A GPT on Megatron-Core without megatron.training: rotary positions, RMS norms, gated feed-forward, no biases.

torchrun --nproc_per_node 8 megatron_core.py --tp 2 --pp 2 --sp --distributed-optimizer
torchrun --nproc_per_node 4 megatron_core.py --te --cp 2 --tp 2

Without --te it takes the layers that Megatron has by itself; with it those of transformer_engine.
"""

import argparse
import os
from functools import partial

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from megatron.core.models import backends
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.transformer import transformer_block
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import get_model_config

NUMBERS = {
    "tp": 1, "pp": 1, "vpp": 0, "cp": 1, "ep": 1, "experts": 0, "layers": 2, "hidden": 256, "heads": 8, "groups": 4,
    "feed": 688, "vocabulary": 2048, "sequence": 128, "micro_batch": 2, "micro_batches": 2, "steps": 2,
    "first_layers": 0,
}  # fmt: skip
FLAGS = ("te", "sp", "distributed-optimizer", "overlap", "fp16", "fp32", "save")
parser = argparse.ArgumentParser()
for name, value in NUMBERS.items():
    parser.add_argument("--" + name.replace("_", "-"), type=int, default=value)
for name in FLAGS:
    parser.add_argument("--" + name, action="store_true")
parser.add_argument("--recompute", choices=("full", "selective"))
parser.add_argument("--recompute-modules", nargs="+")
parser.add_argument("--dispatcher", default="alltoall")
o = parser.parse_args()
DTYPE = torch.float32 if o.fp32 else torch.float16 if o.fp16 else torch.bfloat16


class Norm(torch.nn.RMSNorm):
    """Megatron's own wrapper of torch's norms refuses sequence parallelism."""

    def __init__(self, config, hidden_size, eps=1e-5, **_):
        super().__init__(hidden_size, eps=eps)
        self.weight.sequence_parallel = config.sequence_parallel


def configuration():
    experts = {}
    if o.experts:
        experts = {
            "num_moe_experts": o.experts, "moe_router_topk": 2, "moe_token_dispatcher_type": o.dispatcher,
            "moe_aux_loss_coeff": 1e-2, "moe_ffn_hidden_size": o.feed // 2, "moe_grouped_gemm": o.te,
        }  # fmt: skip
        if o.dispatcher == "flex":
            experts |= {"moe_enable_deepep": True, "moe_router_dtype": "fp32"}
    recompute = {"recompute_granularity": o.recompute}
    if o.recompute == "full":
        recompute |= {"recompute_method": "uniform", "recompute_num_layers": 1}
    if o.recompute_modules:
        recompute["recompute_modules"] = o.recompute_modules
    return TransformerConfig(
        num_layers=o.layers, hidden_size=o.hidden, num_attention_heads=o.heads, num_query_groups=o.groups,
        ffn_hidden_size=o.feed, tensor_model_parallel_size=o.tp, pipeline_model_parallel_size=o.pp,
        virtual_pipeline_model_parallel_size=o.vpp or None, context_parallel_size=o.cp,
        expert_model_parallel_size=o.ep, expert_tensor_parallel_size=1 if o.experts else None,
        num_layers_in_first_pipeline_stage=o.first_layers or None, sequence_parallel=o.sp,
        bf16=DTYPE is torch.bfloat16, fp16=o.fp16, params_dtype=DTYPE, pipeline_dtype=DTYPE, normalization="RMSNorm",
        gated_linear_unit=True, activation_func=torch.nn.functional.silu, add_bias_linear=False, hidden_dropout=0.0,
        attention_dropout=0.0, bias_activation_fusion=False, masked_softmax_fusion=False, persist_layer_norm=False,
        gradient_accumulation_fusion=False, attention_softmax_in_fp32=True, **recompute, **experts,
    )  # fmt: skip


def layers(config, chunk):
    if o.experts:
        return gpt_layer_specs.get_gpt_decoder_block_spec(
            config, use_transformer_engine=o.te, normalization="RMSNorm", vp_stage=chunk
        )
    if o.te:
        return gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec()
    return gpt_layer_specs.get_gpt_layer_local_spec(normalization="RMSNorm")


def build(config, chunk):
    where = {"ignore_virtual": False, "vp_stage": chunk}
    model = GPTModel(
        config, layers(config, chunk), vocab_size=o.vocabulary, max_sequence_length=o.sequence,
        position_embedding_type="rope", share_embeddings_and_output_weights=False, vp_stage=chunk,
        pre_process=parallel_state.is_pipeline_first_stage(**where),
        post_process=parallel_state.is_pipeline_last_stage(**where),
    )  # fmt: skip
    model = model.cuda().to(DTYPE)
    return model if o.fp32 else Float16Module(config, model)


def wrapped(config, chunks):
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=o.distributed_optimizer, overlap_grad_reduce=o.overlap,
        overlap_param_gather=o.overlap and o.distributed_optimizer, bucket_size=10**6 if o.overlap else None,
    )  # fmt: skip
    chunks = [DistributedDataParallel(config, settings, m, disable_bucketing=n > 0) for n, m in enumerate(chunks)]
    for chunk in chunks:
        chunk.broadcast_params()
    return chunks


def batches():
    length = o.sequence // o.cp
    first = parallel_state.get_context_parallel_rank() * length
    generator = torch.Generator().manual_seed(parallel_state.get_data_parallel_rank())
    positions = torch.arange(o.sequence).repeat(o.micro_batch, 1)
    while True:
        tokens = torch.randint(0, o.vocabulary, (o.micro_batch, o.sequence + 1), generator=generator)
        parts = (tokens[:, :-1], positions, tokens[:, 1:])
        yield [part[:, first : first + length].contiguous().cuda(non_blocking=True) for part in parts]


def loss_of(output):
    loss = output.float().mean()
    return loss, {"loss": loss.detach()}


def forward(iterator, model):
    tokens, positions, labels = next(iterator)
    length = o.sequence // o.cp
    mask = None if o.te else torch.triu(torch.ones(1, 1, length, length, device="cuda", dtype=torch.bool), 1)
    return model(tokens, positions, mask, labels=labels), loss_of


def save(chunks, optimizer):
    from megatron.core import dist_checkpointing

    folder = os.path.join(os.environ["CHECKPOINTS"], "step")
    if torch.distributed.get_rank() == 0:
        os.makedirs(folder)
    torch.distributed.barrier()
    ways = {"metadata": {"distrib_optim_sharding_type": "dp_reshardable"}}
    state = {"model": chunks[0].module.sharded_state_dict()}
    state["optimizer"] = optimizer.sharded_state_dict(state["model"], **ways)
    dist_checkpointing.save(state, folder)
    state = {"model": chunks[0].module.sharded_state_dict()}
    state["optimizer"] = optimizer.sharded_state_dict(state["model"], is_loading=True, **ways)
    loaded = dist_checkpointing.load(state, folder)
    chunks[0].module.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    print("loaded again")


def main():
    device = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", device))
    parallel_state.initialize_model_parallel(
        o.tp, o.pp, o.vpp or None, context_parallel_size=o.cp, expert_model_parallel_size=o.ep,
        expert_tensor_parallel_size=1 if o.experts else None,
    )  # fmt: skip
    tensor_parallel.model_parallel_cuda_manual_seed(123)
    if not o.te:
        backends.LocalSpecProvider.layer_norm = lambda self, *_, **__: Norm
        gpt_layer_specs.LNImpl = transformer_block.LayerNormImpl = Norm
    config = configuration()
    chunks = wrapped(config, [build(config, number if o.vpp else None) for number in range(o.vpp or 1)])
    settings = OptimizerConfig(
        optimizer="adam", lr=1e-4, bf16=DTYPE is torch.bfloat16, fp16=o.fp16, params_dtype=DTYPE, clip_grad=1.0,
        use_distributed_optimizer=o.distributed_optimizer,
        initial_loss_scale=2.0**16, min_loss_scale=1.0,
    )  # fmt: skip
    optimizer = get_megatron_optimizer(settings, chunks)
    shared = get_model_config(chunks[0])
    shared.finalize_model_grads_func, shared.grad_scale_func = finalize_model_grads, optimizer.scale_loss
    if o.overlap:
        shared.no_sync_func = [m.no_sync for m in chunks] if o.vpp else chunks[0].no_sync
    run = partial(
        get_forward_backward_func(), forward_step_func=forward, model=chunks if o.vpp else chunks[0],
        data_iterator=[batches() for _ in chunks] if o.vpp else batches(), num_microbatches=o.micro_batches,
        seq_length=o.sequence, micro_batch_size=o.micro_batch, forward_only=False,
    )  # fmt: skip
    for step in range(o.steps):
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        torch.distributed.barrier()
        torch.cuda.synchronize()
        torch.cuda.nvtx.range_push("forward and backward")
        losses = run()
        torch.cuda.synchronize()
        torch.cuda.nvtx.range_pop()
        took_step, norm, _ = optimizer.step()
        print("step", step, "took" if took_step else "skipped", "norm", norm, "losses", len(losses))
    if o.save:
        save(chunks, optimizer)
    torch.cuda.synchronize()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":  # saving a checkpoint spawns processes, which import this file
    main()

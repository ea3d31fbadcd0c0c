"""GPT pretraining through megatron.training on mock data, as Megatron-LM's pretrain_gpt.py."""

import time
from functools import partial

STARTED = time.time()

import torch
from megatron.core import parallel_state
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDatasetConfig, MockGPTDataset
from megatron.core.enums import ModelType
from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer
from megatron.core.utils import get_attr_wrapped_model, get_batch_on_this_cp_rank, get_batch_on_this_tp_rank
from megatron.training import get_args, pretrain, set_startup_timestamps
from megatron.training.argument_utils import gpt_config_from_args, pretrain_cfg_container_from_args
from megatron.training.arguments import parse_and_validate_args
from megatron.training.utils import is_first_or_last_pipeline_stage

FIELDS = ("tokens", "labels", "loss_mask", "attention_mask", "position_ids")


def datasets(num_samples, vp_stage=None):
    args = get_args()
    config = GPTDatasetConfig(
        random_seed=args.seed, sequence_length=args.seq_length, tokenizer=build_tokenizer(args), split=args.split,
        reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False, mid_level_dataset_surplus=0.005,
        create_attention_mask=args.create_attention_mask_in_dataloader,
    )  # fmt: skip

    def is_needed():
        return is_first_or_last_pipeline_stage(vp_stage) and parallel_state.get_tensor_model_parallel_rank() == 0

    return BlendedMegatronDatasetBuilder(MockGPTDataset, num_samples, is_needed, config).build()


datasets.is_distributed = True


def batch(iterator):
    args = get_args()
    rank = parallel_state.get_tensor_model_parallel_rank()
    found = {} if rank else {k: v.cuda(non_blocking=True) for k, v in next(iterator).items() if torch.is_tensor(v)}
    for name in ("cu_seqlens", "cu_seqlens_padded", "max_seqlen", "attention_mask"):
        found.setdefault(name, None)
    found = get_batch_on_this_tp_rank(
        found, has_cu_seqlens=False, is_hybrid_cp=False, tp_rank=rank, cp_size=args.context_parallel_size,
        create_attention_mask_in_dataloader=args.create_attention_mask_in_dataloader,
        broadcast_src_rank=parallel_state.get_tensor_model_parallel_src_rank(),
        broadcast_group=parallel_state.get_tensor_model_parallel_group(), micro_batch_size=args.micro_batch_size,
        seq_length=args.seq_length, mtp_on_this_rank=False,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        is_pipeline_first_stage=parallel_state.is_pipeline_first_stage(),
        is_pipeline_last_stage=parallel_state.is_pipeline_last_stage(),
    )  # fmt: skip
    return get_batch_on_this_cp_rank(found, is_hybrid_cp=False, cp_group=parallel_state.get_context_parallel_group())


def loss_of(mask, output):
    mask = mask.view(-1).float()
    loss = torch.sum(output.view(-1).float() * mask)
    count = mask.sum().clone().detach().to(torch.int)
    return loss, count, {"lm loss": torch.cat([loss.clone().detach().view(1), count.view(1)])}


def forward_step(iterator, model):
    tokens = labels = mask = attention = positions = None
    if is_first_or_last_pipeline_stage(get_attr_wrapped_model(model, "vp_stage")):
        tokens, labels, mask, attention, positions = map(batch(iterator).get, FIELDS)
    return model(tokens, positions, attention, labels=labels, loss_mask=mask), partial(loss_of, mask)


if __name__ == "__main__":
    set_startup_timestamps(program_start=STARTED, main_entry=time.time())
    arguments = parse_and_validate_args(args_defaults={"tokenizer_type": "NullTokenizer"})
    settings = pretrain_cfg_container_from_args(arguments, gpt_config_from_args(arguments))
    pretrain(settings, datasets, ModelType.encoder_or_decoder, forward_step)

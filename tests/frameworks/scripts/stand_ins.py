"""Uses what compiled packages offer, on one or two ranks. stand_ins.py PART"""

import os
import sys

import torch
import torch.distributed as dist


def leaf(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=True)


def triton_kernel():
    import triton
    import triton.language as tl

    @triton.autotune(configs=[triton.Config({"BLOCK": 1024}, num_warps=4)], key=["n"])
    @triton.jit
    def scale(x_ptr, index_ptr, out_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        rows = tl.load(index_ptr + offsets, mask=offsets < n)
        place = out_ptr + rows
        tl.store(place, tl.load(x_ptr + offsets) * 2, mask=offsets < n)

    x, index, out = (
        torch.ones(1 << 20, device="cuda"),
        torch.arange(1 << 10, device="cuda"),
        torch.zeros(1 << 20, device="cuda"),
    )
    scale[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, index, out, x.numel())
    assert index.sum().item() == 1023 * 512  # only read: still known
    assert torch.utils._triton.has_triton_package() is False  # torch.compile keeps to its own way
    torch.compile(lambda t: t.sin() + 1)(x)


def flash():
    import flash_attn_interface
    from flash_attn import flash_attn_func, flash_attn_qkvpacked_func, flash_attn_varlen_func, flash_attn_with_kvcache
    from flash_attn.bert_padding import pad_input, unpad_input

    q, k, v = leaf(2, 512, 8, 64), leaf(2, 512, 4, 64), leaf(2, 512, 4, 64)
    flash_attn_func(q, k, v, causal=True).float().sum().backward()
    assert q.grad.shape == q.shape and k.grad.shape == k.shape
    flash_attn_interface.flash_attn_func(q, k, v, causal=True).float().sum().backward()
    flash_attn_qkvpacked_func(leaf(2, 512, 3, 8, 64), dropout_p=0.1).float().sum().backward()
    mask = torch.ones(2, 512, dtype=torch.int32)
    mask[1, 300:] = 0
    tokens, indices, starts, longest, _ = unpad_input(leaf(2, 512, 512), mask.cuda())
    assert tokens.shape[0] == 812 and longest == 512
    packed = tokens.view(-1, 8, 64)
    out = flash_attn_varlen_func(packed, packed, packed, starts, starts, longest, longest, causal=True)
    pad_input(out.flatten(1), indices, 2, 512).float().sum().backward()
    with torch.no_grad():
        flash_attn_with_kvcache(
            leaf(4, 1, 8, 64), leaf(4, 4096, 8, 64), leaf(4, 4096, 8, 64), cache_seqlens=100, causal=True
        )


def xformers():
    from xformers.ops import LowerTriangularMask, memory_efficient_attention

    q = leaf(2, 512, 8, 64)
    memory_efficient_attention(q, q, q, attn_bias=LowerTriangularMask()).float().sum().backward()


def apex():
    import amp_C
    from apex.multi_tensor_apply import multi_tensor_applier
    from apex.normalization import FusedLayerNorm, FusedRMSNorm
    from apex.optimizers import FusedAdam

    net = torch.nn.Sequential(FusedLayerNorm(512), torch.nn.Linear(512, 512), FusedRMSNorm(512)).cuda()
    optimizer = FusedAdam(net.parameters(), lr=1e-3)
    net(torch.randn(64, 512, device="cuda")).sum().backward()
    overflow = torch.zeros(1, dtype=torch.int, device="cuda")
    norm, _ = multi_tensor_applier(amp_C.multi_tensor_l2norm, overflow, [[p.grad for p in net.parameters()]], False)
    assert norm.item() > 0
    optimizer.step()
    optimizer.zero_grad()


def transformer_engine():
    import transformer_engine.pytorch as te
    from transformer_engine.common.recipe import DelayedScaling, Format

    net = torch.nn.Sequential(
        te.LayerNormMLP(1024, 4096, params_dtype=torch.bfloat16), te.Linear(1024, 1024, params_dtype=torch.bfloat16)
    )
    x = leaf(512, 4, 1024)
    net(x).float().sum().backward()
    with te.fp8_autocast(enabled=True, fp8_recipe=DelayedScaling(fp8_format=Format.HYBRID), fp8_group=dist.group.WORLD):
        out = net(x)
    out.float().sum().backward()
    grouped = te.GroupedLinear(4, 1024, 512, params_dtype=torch.bfloat16)
    grouped(leaf(256, 1024), [100, 0, 56, 100]).float().sum().backward()


def deep_ep():
    from deep_ep import Buffer

    buffer = Buffer(dist.group.WORLD, num_nvl_bytes=1 << 20)
    x, experts, top_k = leaf(256, 512), 8, 2
    scores, chosen = torch.rand(256, experts, device="cuda").topk(top_k)
    per_rank, per_rdma, per_expert, mask, _ = buffer.get_dispatch_layout(chosen, experts)
    received, _, weights, counts, handle, event = buffer.dispatch(
        x.detach(),
        topk_idx=chosen,
        topk_weights=scores,
        num_tokens_per_rank=per_rank,
        num_tokens_per_rdma_rank=per_rdma,
        is_token_in_rank=mask,
        num_tokens_per_expert=per_expert,
        async_finish=True,
    )
    event.current_stream_wait()
    out, _, _ = buffer.combine(received, handle, topk_weights=weights)
    assert out.shape == x.shape
    print("received", received.shape[0], "per expert", counts)


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
for part in sys.argv[1:]:
    globals()[part]()
torch.cuda.synchronize()
dist.destroy_process_group()

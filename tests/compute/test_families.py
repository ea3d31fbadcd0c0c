"""Prices of single operators: order, size, kernels, and what is known of their kernels."""

from __future__ import annotations

import pytest
from compute_calls import call, contiguous, mm, pointwise, transposed

from phantora.compute import OpCall, Pricer, TensorSpec

BF16, F32 = "bfloat16", "float32"


def ns(pricer: Pricer, op: OpCall) -> int:
    return pricer.price(op).duration_ns


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_products_grow_with_every_dimension(h200: Pricer, dtype: str) -> None:
    base = (1024, 2048, 2048)
    for place in range(3):
        times = [
            ns(h200, mm(*(size * scale if i == place else size for i, size in enumerate(base)), dtype))
            for scale in (1, 2, 4, 8)
        ]
        assert times == sorted(times)


def test_products_count_two_flops_per_multiply_add(h200: Pricer) -> None:
    assert h200.price(mm(128, 256, 512)).flops == 2 * 128 * 256 * 512


def test_tf32_and_16_bit_products_are_faster_than_float32(h200: Pricer) -> None:
    slow, tf32 = ns(h200, mm(4096, 4096, 4096, F32)), ns(h200, mm(4096, 4096, 4096, F32, allow_tf32=True))
    assert slow > 5 * tf32 > 5 * ns(h200, mm(4096, 4096, 4096))


def test_odd_rows_cost_several_times_an_aligned_product(h200: Pricer) -> None:
    """GPT-2's 50,257 columns: 6.6 ms in a step where 50,304 take 0.87 ms."""
    assert ns(h200, mm(8192, 50257, 768)) > 4 * ns(h200, mm(8192, 50304, 768))


def test_fp8_products_are_at_most_twice_as_fast(h200: Pricer) -> None:
    a, b = contiguous((8192, 8192), "float8_e4m3fn"), transposed(8192, 8192, "float8_e4m3fn")
    fp8 = ns(h200, call("_scaled_mm", contiguous((8192, 8192), BF16), self=a, mat2=b))
    assert 0.45 < fp8 / ns(h200, mm(8192, 8192, 8192)) < 0.7


def test_batched_product_is_not_faster_than_its_traffic(h200: Pricer) -> None:
    x = contiguous((64, 512, 64), BF16)
    y = contiguous((64, 64, 512), BF16)
    price = h200.price(call("bmm", contiguous((64, 512, 512), BF16), self=x, mat2=y))
    assert price.duration_ns > price.bytes / 4800


def test_grouped_product_is_close_to_its_groups_as_a_batch(h200: Pricer) -> None:
    out = contiguous((8192, 4096), BF16)
    grouped = call("_grouped_mm", out, self=contiguous((8192, 2048), BF16), mat2=contiguous((8, 2048, 4096), BF16))
    batch = call(
        "bmm",
        contiguous((8, 1024, 4096), BF16),
        self=contiguous((8, 1024, 2048), BF16),
        mat2=contiguous((8, 2048, 4096), BF16),
    )
    assert ns(h200, grouped) == pytest.approx(ns(h200, batch), rel=0.15)


@pytest.mark.parametrize("backend", ["flash", "efficient", "cudnn"])
def test_attention(h200: Pricer, backend: str) -> None:
    """Causal costs less, backward more, and both grow faster than linearly with the sequence."""
    times = {}
    for tokens in (2048, 4096):
        q = contiguous((2, 32, tokens, 128), BF16)
        for causal in (False, True):
            forward = call(f"_scaled_dot_product_{backend}_attention", q, query=q, key=q, value=q, is_causal=causal)
            backward = call(
                f"_scaled_dot_product_{backend}_attention_backward",
                [q, q, q],
                grad_out=q,
                query=q,
                key=q,
                value=q,
                is_causal=causal,
            )
            times[tokens, causal] = ns(h200, forward), ns(h200, backward)
    assert times[4096, True][0] < 0.75 * times[4096, False][0]
    assert times[4096, False][1] > 2 * times[4096, False][0]
    assert times[4096, False][0] > 3 * times[2048, False][0]


def test_dropout_in_attention_costs_time(h200: Pricer) -> None:
    """GPT-2 124M, batch 8: 104 us with dropout in a step, 47 us without."""
    q = contiguous((8, 12, 1024, 64), BF16)
    args = {"query": q, "key": q, "value": q, "is_causal": True}
    plain = ns(h200, call("_cudnn_attention_forward", q, **args))
    assert ns(h200, call("_cudnn_attention_forward", q, (("dropout", True),), **args)) > 1.8 * plain


def test_grouped_queries_read_fewer_keys(h200: Pricer) -> None:
    q, kv = contiguous((2, 32, 4096, 64), BF16), contiguous((2, 8, 4096, 64), BF16)
    wide = h200.price(call("_cudnn_attention_forward", q, query=q, key=q, value=q, is_causal=True))
    narrow = h200.price(call("_cudnn_attention_forward", q, query=q, key=kv, value=kv, is_causal=True))
    assert narrow.flops == wide.flops and narrow.bytes < wide.bytes


def test_layouts_of_pointwise_operands(h200: Pricer) -> None:
    """Vectorised < broadcast < transposed; a cast costs more than its bytes."""
    x, row = contiguous((8192, 4096), F32), contiguous((4096,), F32)
    same = ns(h200, pointwise("mul", x, x, x))
    broadcast = ns(h200, pointwise("mul", x, x, row))
    crossed = ns(h200, pointwise("mul", x, x, transposed(8192, 4096, F32)))
    assert broadcast < crossed and same < crossed
    assert broadcast > 1.3 * same * 2 / 3  # a third less traffic, but an offset is computed for every element
    half = contiguous((8192, 4096), BF16)
    assert ns(h200, pointwise("mul", x, x, half)) > same


def test_large_pointwise_operators_reach_the_streaming_rate(h200: Pricer) -> None:
    x = contiguous((1 << 28,), F32)
    assert ns(h200, pointwise("add", x, x, x)) == pytest.approx(734_000, rel=0.01)  # 734.4 us measured


def test_small_kernels_cost_a_launch(h200: Pricer) -> None:
    x = contiguous((4,), F32)
    assert 1_000 < ns(h200, pointwise("add", x, x, x)) < 3_000


def test_channels_last_convolution_beats_nchw(h200: Pricer) -> None:
    shape, weight, out = (64, 128, 28, 28), (128, 128, 3, 3), (64, 128, 28, 28)
    last = (0, 2, 3, 1)
    times = [
        ns(
            h200,
            call(
                "cudnn_convolution",
                contiguous(out, BF16, order),
                self=contiguous(shape, BF16, order),
                weight=contiguous(weight, BF16, order),
            ),
        )
        for order in (last, None)
    ]
    assert times[0] < times[1]


def test_output_mask_of_convolution_backward(h200: Pricer) -> None:
    x, w = contiguous((64, 256, 14, 14), BF16, (0, 2, 3, 1)), contiguous((256, 256, 3, 3), BF16, (0, 2, 3, 1))

    def make(mask: tuple[bool, bool, bool]) -> OpCall:
        return call("convolution_backward", [x, w], grad_output=x, input=x, weight=w, output_mask=mask)

    both, weight_only, nothing_but_bias = (
        h200.price(make(m)) for m in ((True, True, False), (False, True, False), (False, False, True))
    )
    input_only = h200.price(make((True, False, False)))
    assert weight_only.duration_ns + input_only.duration_ns == pytest.approx(both.duration_ns, abs=2)
    assert 0 < nothing_but_bias.duration_ns < weight_only.duration_ns


def test_kernels_per_operator(h200: Pricer) -> None:
    """As counted in profiled steps."""
    x, stats, weight = contiguous((8192, 768), F32), contiguous((8192, 1), F32), contiguous((768,), F32)
    backward = call(
        "native_layer_norm_backward", [x, weight, weight], grad_out=x, input=x, normalized_shape=(768,), mean=stats
    )
    assert h200.price(backward).num_kernels == 2
    q = contiguous((8, 12, 1024, 64), BF16)
    attention = call("_cudnn_attention_backward", [q, q, q], grad_out=q, query=q, key=q, value=q, is_causal=True)
    assert h200.price(attention).num_kernels == 4
    table, index = contiguous((50257, 768), F32), contiguous((8192,), "int64")
    assert h200.price(call("embedding_dense_backward", table, grad_output=x, indices=index)).num_kernels > 10
    few = contiguous((1024,), "int64")
    assert (
        h200.price(
            call("embedding_dense_backward", table, grad_output=contiguous((1024, 768), F32), indices=few)
        ).num_kernels
        == 2
    )


def test_launches_of_foreach_operators(h200: Pricer) -> None:
    """GPT-2's 148 parameters, 124 million elements: 7 launches of _foreach_mul_ and of _foreach_addcdiv_."""
    sizes = (
        [50257 * 768, 1024 * 768]
        + [768, 768, 768 * 2304, 2304, 768 * 768, 768, 768, 768, 768 * 3072, 3072, 3072 * 768, 768] * 12
        + [768, 768]
    )
    tensors = tuple(contiguous((size,), F32) for size in sizes)
    one = OpCall("aten::_foreach_mul_", args=(("self", tensors), ("scalar", 0.0)), mutated=("self",))
    assert 6 <= h200.price(one).num_kernels <= 8
    three = OpCall(
        "aten::_foreach_addcdiv_",
        args=(("self", tensors), ("tensor1", tensors), ("tensor2", tensors)),
        mutated=("self",),
    )
    assert 6 <= h200.price(three).num_kernels <= 9
    assert h200.price(three).bytes == pytest.approx(4 * 4 * sum(sizes))


def test_many_small_tensors_are_launched_in_groups(h200: Pricer) -> None:
    tensors = (contiguous((64,), F32),) * 111
    assert h200.price(OpCall("aten::_foreach_mul_", args=(("self", tensors),), mutated=("self",))).num_kernels == 2


def test_fused_adam_moves_four_lists_and_writes_three(h200: Pricer) -> None:
    tensors = (contiguous((1024, 1024), F32),) * 100
    args = tuple((name, tensors) for name in ("self", "grads", "exp_avgs", "exp_avg_sqs"))
    price = h200.price(OpCall("aten::_fused_adamw_", args=args, mutated=("self", "exp_avgs", "exp_avg_sqs")))
    assert price.bytes == 7 * 4 * 100 * 1024 * 1024 and price.family == "optimizer"


def test_copies_over_pcie(h200: Pricer) -> None:
    size = 256 << 20
    host = TensorSpec((size,), (1,), "uint8", "cpu")
    pinned = h200.price(OpCall("memcpy_h2d", args=(("self", host), ("pinned", True))))
    pageable = h200.price(OpCall("memcpy_h2d", args=(("self", host), ("pinned", False))))
    assert size / pinned.duration_ns == pytest.approx(55, rel=0.15)  # GB/s
    assert pageable.duration_ns > 2 * pinned.duration_ns
    assert pinned.family == "memcpy" and pinned.bytes == size


def test_small_pageable_copies_to_the_device_go_inline(h200: Pricer) -> None:
    host = TensorSpec((16,), (1,), "uint8", "cpu")
    assert ns(h200, OpCall("memcpy_h2d", args=(("self", host), ("pinned", False)))) < 5_000


def test_custom_operators_cost_their_bytes(h200: Pricer) -> None:
    x = contiguous((1 << 26,), BF16)
    price = h200.price(OpCall("my::kernel", args=(("x", x),), outputs=(x,)))
    assert price.bytes == 2 * 2 * (1 << 26) and price.duration_ns > price.bytes / 4800


def test_empty_tensors_and_views_launch_nothing(h200: Pricer) -> None:
    empty, x = contiguous((0, 16), F32), contiguous((4, 4), F32)
    for op in (pointwise("add", empty, empty, empty), pointwise("view", x, x)):
        price = h200.price(op)
        assert (price.duration_ns, price.num_kernels) == (0, 0)


def test_recurrent_layers_grow_with_time_steps(h200: Pricer) -> None:
    def lstm(steps: int) -> OpCall:
        x = contiguous((steps, 64, 512), BF16)
        return call("_cudnn_rnn", x, input=x, mode=2, hidden_size=512, num_layers=2, batch_first=False)

    assert 1.8 < ns(h200, lstm(256)) / ns(h200, lstm(128)) < 2.2


def test_duplicate_gradients_are_accumulated_slowly(h200: Pricer) -> None:
    x, index = contiguous((1 << 20,), F32), contiguous((1 << 20,), "int64")

    def put(accumulate: bool) -> OpCall:
        args = (("self", x), ("indices", (index,)), ("values", x), ("accumulate", accumulate))
        return OpCall("aten::index_put_", args=args, outputs=(x,), mutated=("self",))

    assert ns(h200, put(True)) > 10 * ns(h200, put(False))


def test_factorizations_take_the_time_of_their_columns(h200: Pricer) -> None:
    """H200: Cholesky of 1,024 columns 0.38 ms, LU 1.9 ms, QR 4.4 ms, eigenvectors 10 ms, singular vectors 53 ms."""
    measured_ms = {"linalg_cholesky_ex": 0.38, "linalg_lu_factor_ex": 1.86, "linalg_qr": 4.36, "_linalg_eigh": 10.1,
                   "_linalg_svd": 53.0}  # fmt: skip
    matrix = contiguous((1000, 1000), F32)
    for name, expected in measured_ms.items():
        price = h200.price(call(name, matrix, A=matrix))
        assert price.duration_ns / 1e6 == pytest.approx(expected, rel=0.3) and price.family == "factorization", name


def test_factorizations_grow_and_batches_of_small_ones_run_side_by_side(h200: Pricer) -> None:
    times = [ns(h200, call("linalg_qr", contiguous((n, n), F32), A=contiguous((n, n), F32))) for n in (128, 512, 2048)]
    assert times == sorted(times)
    one, many = (contiguous(shape, F32) for shape in ((16, 16), (256, 16, 16)))
    assert ns(h200, call("linalg_lu_factor_ex", many, A=many)) < 16 * ns(h200, call("linalg_lu_factor_ex", one, A=one))


def test_recurrent_layers_are_chains_of_steps(h200: Pricer) -> None:
    """LSTM of 200 units, batch 64: 10.7 us a step on the H200; a GPU cannot do much about the chain."""

    def lstm(steps: int) -> OpCall:
        out = contiguous((steps, 64, 200), F32)
        return call("_cudnn_rnn", out, input=out, mode=2, hidden_size=200, num_layers=1)

    assert ns(h200, lstm(35)) == pytest.approx(385e3, rel=0.15)
    assert ns(h200, lstm(140)) == pytest.approx(4 * ns(h200, lstm(35)), rel=0.15)


def test_rolling_two_dimensions_takes_two_kernels(h200: Pricer) -> None:
    """[64, 14, 14, 512] in bfloat16 and float32 on the H200: 60 us a call in the mean."""
    x = contiguous((64, 14, 14, 512), F32)

    def roll(*dims: int) -> OpCall:
        return call("roll", x, self=x, shifts=(-3,) * len(dims), dims=dims)

    assert h200.price(roll(1, 2)).num_kernels == 2
    assert ns(h200, roll(1, 2)) == pytest.approx(2 * ns(h200, roll(1)), rel=0.01)


def test_losses_of_pictures(h200: Pricer) -> None:
    """16 x 150 x 512 x 512 on the H200: 0.17 ms forward, 0.29 ms and zeros (0.54 ms) backward."""
    scores, target = contiguous((16, 150, 512, 512), F32), contiguous((16, 512, 512), "int64")
    forward = call("nll_loss2d_forward", contiguous((), F32), self=scores, target=target)
    backward = call("nll_loss2d_backward", scores, grad_output=contiguous((), F32), self=scores, target=target)
    assert ns(h200, forward) == pytest.approx(169e3, rel=0.1)
    assert ns(h200, backward) == pytest.approx(822e3, rel=0.1)


def test_softmax_copies_an_input_with_other_strides_first(h200: Pricer) -> None:
    """The same scores in channels-last: 5.9 ms for the copy, 3.8 ms for the softmax across the channels."""
    plain = contiguous((16, 150, 512, 512), F32)
    strided = TensorSpec(plain.shape, (39321600, 1, 76800, 150), F32)
    copied, uncopied = (ns(h200, call("_log_softmax", plain, self=x, dim=1, half_to_float=False)) for x in (strided, plain))
    assert uncopied == pytest.approx(3.77e6, rel=0.1)
    assert copied - uncopied == pytest.approx(5.9e6, rel=0.35)


def test_joining_channels_last_is_a_plain_copy(h200: Pricer) -> None:
    """Four [16, 768, 128, 128] in channels-last on the H200: 1.75 ms."""
    part = TensorSpec((16, 768, 128, 128), (12582912, 1, 98304, 768), F32)
    whole = TensorSpec((16, 3072, 128, 128), (50331648, 1, 393216, 3072), F32)
    assert ns(h200, call("cat", whole, tensors=(part,) * 4, dim=1)) == pytest.approx(1.75e6, rel=0.2)


def test_connectionist_losses_walk_through_time(h200: Pricer) -> None:
    """H200: 0.27 and 0.49 ms for 499 steps of 8 texts, 0.21 and 0.45 ms for 400 steps of 32."""
    for steps, batch, classes, forward_us, backward_us in ((499, 8, 32, 267, 488), (400, 32, 29, 211, 449)):
        scores = contiguous((steps, batch, classes), F32)
        found = [ns(h200, call(name, scores, log_probs=scores)) for name in ("_ctc_loss", "_ctc_loss_backward")]
        assert found == pytest.approx([forward_us * 1e3, backward_us * 1e3], rel=0.15)


def test_rows_that_start_at_multiples_of_8_bytes_only(h200: Pricer) -> None:
    """A vocabulary of 128,100 (DeBERTa) on the H200: 3.4, 3.3 and 3.0 ms where aligned ones take 1.5."""
    hidden, weight, logits = (contiguous(s, BF16) for s in ((4096, 768), (128100, 768), (4096, 128100)))
    turned = TensorSpec((768, 128100), (1, 768), BF16)
    assert ns(h200, call("mm", logits, self=hidden, mat2=turned)) == pytest.approx(3.41e6, rel=0.2)
    assert ns(h200, call("mm", hidden, self=logits, mat2=weight)) == pytest.approx(3.29e6, rel=0.2)


def test_flash_attention_on_an_a100(a100: Pricer) -> None:
    """FlashAttention-2 (Dao, 2023), A100: 190 to 230 TF forward, 150 to 200 backward, head size 128, long sequences."""
    q = contiguous((4, 16, 8192, 128), BF16)
    args = {"query": q, "key": q, "value": q}
    forward = a100.price(call("_scaled_dot_product_flash_attention", q, **args))
    backward = a100.price(call("_scaled_dot_product_flash_attention_backward", [q, q, q], grad_out=q, **args))
    assert 180 < forward.flops / forward.duration_ns / 1e3 < 235
    assert 145 < backward.flops / backward.duration_ns / 1e3 < 205


def test_membership_among_few_is_compared_and_among_many_sorted(h200: Pricer) -> None:
    """One test for 8 elements: 4 small kernels. 100 tests for a million elements (10 x 1e6^0.145 = 74): sorted."""

    def isin(size: int, num_tests: int) -> OpCall:
        elements, tests = contiguous((size,), "int64"), contiguous((num_tests,), "int64")
        return call("isin", contiguous((size,), "bool"), elements=elements, test_elements=tests)

    few, many = h200.price(isin(8, 1)), h200.price(isin(1_000_000, 100))
    assert few.num_kernels == 4 and few.duration_ns < 20_000
    assert many.num_kernels == 61 and many.duration_ns > 200_000

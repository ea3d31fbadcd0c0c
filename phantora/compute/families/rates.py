"""Rates of kernels that are bound by neither the tensor cores nor memory alone, by kind, fitted on the H200 sweeps."""

from __future__ import annotations

# kind: (fixed ns, elements per second on the 132 SMs of an H200, times that its bytes cross memory).
# fmt: off
RATES: dict[str, tuple[float, float, float]] = {
    "_adaptive_avg_pool2d-nchw": (34000.0, 1e+16, 0.0),
    "_adaptive_avg_pool2d-nhwc": (1500.0, 1.9e+11, 0.0),
    "_adaptive_avg_pool2d_backward-nchw": (1500.0, 7.4e+10, 0.0),
    "_adaptive_avg_pool2d_backward-nhwc": (17000.0, 5.2e+11, 0.51),
    "_fft_c2c": (5300.0, 1e+16, 1.2),
    "_fft_r2c": (3100.0, 1e+16, 1.5),
    "_unique2": (21000.0, 1e+16, 31.0),
    "avg_pool2d-nchw": (2700.0, 3.4e+11, 0.0),
    "avg_pool2d-nhwc": (1500.0, 1.8e+11, 0.64),
    "avg_pool2d_backward-nchw": (2100.0, 6e+10, 0.37),
    "avg_pool2d_backward-nhwc": (2400.0, 5.8e+10, 0.0),
    "batch_norm_elemt-nchw": (2500.0, 3.3e+11, 0.0),
    "batch_norm_elemt-nhwc": (7000.0, 1.2e+12, 1.1),
    "bernoulli": (1500.0, 2e+11, 0.0),
    "bernoulli_": (4100.0, 6.6e+11, 0.0),
    "bincount": (16000.0, 1e+16, 7.4),
    "cast_many": (1500.0, 2.5e+11, 0.0),
    "cast_offsets-2d-2": (4000.0, 2.3e+11, 0.0),
    "cat": (3100.0, 2.6e+11, 0.29),
    "constant_pad_nd": (3200.0, 4.2e+11, 0.99),
    "embedding_bag": (3700.0, 1e+16, 2.6),
    "embedding_bag_max_backward": (4400.0, 2e+11, 1.0),
    "exponential_": (4200.0, 5.9e+11, 0.0),
    "flip": (1600.0, 4.1e+11, 0.29),
    "gather-elements": (5300.0, 1e+16, 1.5),
    "grid_sampler_2d-nchw": (1500.0, 8.5e+10, 0.0),
    "grid_sampler_2d_backward-nchw": (1500.0, 1.9e+10, 0.0),
    "histc": (17000.0, 1e+16, 12.0),
    "im2col": (1600.0, 1.2e+11, 0.0),
    "index-elements": (4800.0, 7e+11, 1.3),
    "index_add-elements": (1500.0, 5.5e+10, 0.0),
    "index_add-rows": (2800.0, 1.5e+11, 0.0),
    "index_copy-elements": (1500.0, 4.4e+10, 0.0),
    "index_copy-rows": (3200.0, 3.4e+11, 0.0),
    "index_fill-elements": (1500.0, 2.6e+11, 0.0),
    "index_put-elements": (1500.0, 4.2e+10, 0.0),
    "index_put-rows": (3400.0, 2.3e+11, 0.0),
    "index_put_accumulate-elements": (60000.0, 4.2e+09, 0.0),
    "index_put_accumulate-rows": (38000.0, 3.3e+11, 0.0),
    "index_select-elements": (1500.0, 1.4e+11, 0.0),
    "isin": (280000.0, 1e+16, 120.0),
    "masked_select": (18000.0, 1.8e+11, 0.24),
    "max_pool2d_with_indices-nchw": (2900.0, 3e+11, 0.0),
    "max_pool2d_with_indices-nhwc": (14000.0, 3.2e+11, 0.0),
    "max_pool2d_with_indices_backward-nchw": (4900.0, 9.1e+10, 0.0),
    "max_pool2d_with_indices_backward-nhwc": (9700.0, 1.6e+11, 0.0),
    "multinomial": (49000.0, 1.6e+11, 3.9),
    "nonzero": (11000.0, 1.4e+11, 0.0),
    "normal_": (4500.0, 4.5e+11, 0.0),
    "offsets-1d-1": (2100.0, 1e+16, 1.0),
    "offsets-1d-2": (2200.0, 9.6e+11, 1.3),
    "offsets-2d-1": (2200.0, 7.1e+11, 0.88),
    "offsets-2d-2": (2100.0, 5e+11, 0.5),
    "offsets-3d-1": (2100.0, 5.5e+11, 0.65),
    "offsets-3d-2": (2200.0, 4.2e+11, 0.4),
    "offsets-4d-1": (2300.0, 4.2e+11, 0.44),
    "offsets-4d-2": (2400.0, 3.5e+11, 0.29),
    "pixel_shuffle": (2200.0, 3.5e+11, 0.28),
    "random_": (1500.0, 3.6e+11, 0.0),
    "randperm": (17000.0, 8.3e+09, 0.0),
    "repeat": (2200.0, 1.1e+12, 1.4),
    "roll": (1600.0, 2.5e+11, 0.4),
    "scatter-elements": (4300.0, 1e+16, 2.5),
    "scatter_add-elements": (1500.0, 5.8e+10, 0.0),
    "scatter_add-rows": (4800.0, 3.2e+11, 0.0),
    "scatter_reduce-elements": (1500.0, 3.3e+10, 0.0),
    "scatter_reduce-rows": (6800.0, 2.3e+11, 0.0),
    "searchsorted": (3800.0, 9.2e+10, 0.0),
    "transposed": (2100.0, 1.7e+11, 0.69),
    "tril": (2600.0, 1.1e+12, 1.3),
    "uniform_": (4200.0, 6.3e+11, 0.0),
    "unique_consecutive": (7400.0, 2e+11, 0.0),
    "unknown-binary_cross_entropy_with_logits": (14000.0, 7.9e+11, 5.9),
    "upsample_bicubic2d-nchw": (63000.0, 1e+16, 0.0),
    "upsample_bicubic2d-nhwc": (56000.0, 1e+16, 0.0),
    "upsample_bicubic2d_backward-nchw": (230000.0, 1e+16, 0.0),
    "upsample_bicubic2d_backward-nhwc": (240000.0, 1e+16, 0.0),
    "upsample_bilinear2d-nchw": (22000.0, 1.6e+11, 0.0),
    "upsample_bilinear2d-nhwc": (2900.0, 1.1e+11, 0.0),
    "upsample_bilinear2d_backward-nchw": (11000.0, 1.1e+11, 0.0),
    "upsample_bilinear2d_backward-nhwc": (6100.0, 8.6e+10, 0.0),
    "upsample_nearest2d-nchw": (1800.0, 5.2e+11, 0.68),
    "upsample_nearest2d-nhwc": (2100.0, 1.7e+11, 0.17),
    "upsample_nearest2d_backward-nchw": (5500.0, 7.2e+11, 0.28),
    "upsample_nearest2d_backward-nhwc": (2800.0, 3.1e+11, 0.17),
}

# kind: (fixed ns, ns per row, ns per column, ns per element, times that its bytes cross memory).
ROW_RATES: dict[str, tuple[float, float, float, float, float]] = {
    "group_norm": (6600.0, 5.8, 0.48, 0.003, 1.9),
    "group_norm_backward": (14000.0, 20.0, 0.014, 0.0054, 1.1),
    "layer_norm": (2500.0, 0.96, 1.1, 0.0, 2.8),
    "layer_norm-odd": (1500.0, 1.7, 0.0, 0.019, 2.0),
    "layer_norm_backward": (5000.0, 0.71, 0.73, 0.00097, 5.8),
    "layer_norm_backward-odd": (15000.0, 0.0, 0.0, 0.006, 1.7),
    "log_softmax": (2100.0, 0.0, 0.7, 0.0011, 0.93),
    "log_softmax-long": (2900.0, 0.0, 0.0, 0.00077, 2.4),
    "log_softmax-odd": (1500.0, 0.0, 0.17, 0.0, 3.3),
    "log_softmax_backward": (2000.0, 0.0, 1.6, 0.001, 2.0),
    "log_softmax_backward-long": (1500.0, 0.0, 0.28, 0.0, 3.5),
    "log_softmax_backward-odd": (1500.0, 0.0, 0.21, 0.0, 4.1),
    "nll_loss": (5500.0, 0.58, 0.0, 0.0, 0.0),
    "rms_norm": (2300.0, 0.35, 0.66, 0.0, 2.2),
    "rms_norm-odd": (1500.0, 5.3, 19.0, 0.0, 2.1),
    "rms_norm_backward": (4700.0, 0.55, 0.64, 0.0, 6.5),
    "rms_norm_backward-odd": (13000.0, 0.0, 0.0, 0.0053, 1.4),
    "softmax": (2200.0, 0.03, 2.1, 0.0013, 0.67),
    "softmax-long": (3100.0, 0.0, 0.0, 0.0014, 2.0),
    "softmax-odd": (1500.0, 0.0, 0.24, 0.0, 4.0),
    "softmax_backward": (3600.0, 0.0, 0.79, 0.00042, 5.7),
    "softmax_backward-long": (3600.0, 0.0, 0.18, 0.0, 6.7),
    "softmax_backward-odd": (1500.0, 0.0, 0.2, 0.0, 7.1),
}
# fmt: on


def item_rates(kind: str) -> tuple[float, float, float]:
    """The rates of `kind`; 'offsets-<dimensions>d-<operands>' that was not measured has its nearest relative's."""
    stem, _, rest = kind.partition("-")
    fewer = (f"{stem}-{rest[:1]}d-{operands}" for operands in (2, 1)) if stem.endswith("offsets") else ()
    nearest = next((name for name in (kind, *fewer, f"{stem}-2d-2", "offsets-2d-1") if name in RATES), "offsets-2d-1")
    return RATES[nearest]


def row_rates(kind: str) -> tuple[float, float, float, float, float]:
    """The rates of `kind`, or of the kind without its variant ('layer_norm-odd')."""
    return ROW_RATES.get(kind) or ROW_RATES.get(kind.partition("-")[0]) or ROW_RATES["softmax"]

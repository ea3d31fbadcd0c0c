"""Rates of convolutions, fitted on the H200 sweeps.

(direction, layout, kind, dtype class) -> (fixed ns, share of the tensor-core product's time, times that the images,
times that the weights cross memory, ns per tap at 1e12 taps a second). In NCHW the library converts images and weights,
the latter slowly.
"""

from __future__ import annotations

Rates = tuple[float, float, float, float, float]

# fmt: off
_RATES: dict[tuple[str, str, str, str], Rates] = {
    ("dgrad", "nchw", "dense", "half"): (13000.0, 0.83, 5.2, 11.0, 0.0),
    ("dgrad", "nchw", "dense", "tf32"): (18000.0, 0.92, 3.4, 6.2, 0.0),
    ("dgrad", "nchw", "depthwise", "half"): (1500.0, 0.0, 12.0, 0.0, 0.65),
    ("dgrad", "nchw", "depthwise", "tf32"): (1500.0, 0.0, 6.6, 0.0, 0.54),
    ("dgrad", "nchw", "grouped", "half"): (3000.0, 4.4, 0.0, 0.0, 0.0),
    ("dgrad", "nchw", "grouped", "tf32"): (3000.0, 3.0, 0.0, 0.0, 0.0),
    ("dgrad", "nchw", "point", "half"): (6700.0, 2.1, 0.0, 0.0, 0.0),
    ("dgrad", "nchw", "point", "tf32"): (9700.0, 1.3, 0.71, 36.0, 0.0),
    ("dgrad", "nchw", "thin", "half"): (3000.0, 39.0, 0.0, 0.0, 0.0),
    ("dgrad", "nchw", "thin", "tf32"): (3000.0, 14.0, 0.0, 0.0, 0.0),
    ("dgrad", "nchw", "transposed", "half"): (26000.0, 0.0, 0.0, 0.0, 0.58),
    ("dgrad", "nchw", "transposed", "tf32"): (34000.0, 2.0, 0.0, 0.0, 0.0),
    ("dgrad", "nhwc", "dense", "half"): (10000.0, 0.76, 1.1, 0.0, 0.0),
    ("dgrad", "nhwc", "dense", "tf32"): (13000.0, 0.82, 1.2, 0.85, 0.0),
    ("dgrad", "nhwc", "depthwise", "half"): (1500.0, 0.0, 0.46, 340000.0, 0.32),
    ("dgrad", "nhwc", "depthwise", "tf32"): (1500.0, 0.0, 0.0, 210000.0, 0.36),
    ("dgrad", "nhwc", "grouped", "half"): (3000.0, 2.1, 0.0, 0.0, 0.0),
    ("dgrad", "nhwc", "grouped", "tf32"): (3000.0, 1.6, 0.0, 0.0, 0.0),
    ("dgrad", "nhwc", "point", "half"): (4800.0, 0.18, 1.1, 0.0, 0.0),
    ("dgrad", "nhwc", "point", "tf32"): (8800.0, 0.0, 1.1, 26.0, 0.0),
    ("dgrad", "nhwc", "thin", "half"): (3000.0, 23.0, 0.0, 0.0, 0.0),
    ("dgrad", "nhwc", "thin", "tf32"): (3000.0, 20.0, 0.0, 0.0, 0.0),
    ("forward", "nchw", "dense", "half"): (8200.0, 0.91, 3.8, 11.0, 0.16),
    ("forward", "nchw", "dense", "tf32"): (8600.0, 0.85, 2.7, 6.6, 0.22),
    ("forward", "nchw", "depthwise", "half"): (1500.0, 3.4, 2.2, 0.0, 0.0),
    ("forward", "nchw", "depthwise", "tf32"): (1500.0, 1.6, 1.2, 0.0, 0.0),
    ("forward", "nchw", "grouped", "half"): (3000.0, 4.4, 0.0, 0.0, 0.0),
    ("forward", "nchw", "grouped", "tf32"): (3000.0, 3.0, 0.0, 0.0, 0.0),
    ("forward", "nchw", "point", "half"): (3300.0, 1.7, 0.0, 0.0, 0.46),
    ("forward", "nchw", "point", "tf32"): (7800.0, 0.52, 0.74, 33.0, 0.37),
    ("forward", "nchw", "thin", "half"): (13000.0, 2.5, 2.1, 0.0, 0.19),
    ("forward", "nchw", "thin", "tf32"): (11000.0, 1.9, 1.1, 67.0, 0.18),
    ("forward", "nchw", "transposed", "half"): (33000.0, 0.0, 0.0, 0.0, 0.44),
    ("forward", "nchw", "transposed", "tf32"): (49000.0, 0.0, 0.0, 0.0, 0.82),
    ("forward", "nhwc", "dense", "half"): (4500.0, 0.83, 0.43, 1.1, 0.099),
    ("forward", "nhwc", "dense", "tf32"): (5300.0, 0.82, 0.32, 0.56, 0.17),
    ("forward", "nhwc", "depthwise", "half"): (1500.0, 0.0, 1.4, 470000.0, 0.1),
    ("forward", "nhwc", "depthwise", "tf32"): (1500.0, 0.4, 0.59, 680000.0, 0.0),
    ("forward", "nhwc", "grouped", "half"): (3000.0, 2.1, 0.0, 0.0, 0.0),
    ("forward", "nhwc", "grouped", "tf32"): (3000.0, 1.6, 0.0, 0.0, 0.0),
    ("forward", "nhwc", "point", "half"): (2600.0, 0.34, 0.83, 7.3, 0.22),
    ("forward", "nhwc", "point", "tf32"): (7900.0, 0.52, 0.71, 0.0, 0.35),
    ("forward", "nhwc", "thin", "half"): (1500.0, 0.59, 7.8, 580.0, 0.085),
    ("forward", "nhwc", "thin", "tf32"): (8700.0, 0.83, 1.3, 230.0, 0.11),
    ("wgrad", "nchw", "dense", "half"): (9600.0, 0.79, 3.8, 14.0, 0.17),
    ("wgrad", "nchw", "dense", "tf32"): (1500.0, 1.7, 2.7, 6.9, 0.44),
    ("wgrad", "nchw", "depthwise", "half"): (1500.0, 0.14, 0.0, 4500000.0, 1.1),
    ("wgrad", "nchw", "depthwise", "tf32"): (1500.0, 0.085, 0.0, 2200000.0, 1.1),
    ("wgrad", "nchw", "grouped", "half"): (3000.0, 2.2, 0.0, 0.0, 0.0),
    ("wgrad", "nchw", "grouped", "tf32"): (3000.0, 3.3, 0.0, 0.0, 0.0),
    ("wgrad", "nchw", "point", "half"): (5000.0, 1.9, 0.0, 0.0, 0.0),
    ("wgrad", "nchw", "point", "tf32"): (8300.0, 1.9, 0.0, 0.0, 0.0),
    ("wgrad", "nchw", "thin", "half"): (1500.0, 0.0, 0.0, 780.0, 0.0),
    ("wgrad", "nchw", "thin", "tf32"): (1500.0, 0.0, 0.0, 760.0, 0.0),
    ("wgrad", "nchw", "transposed", "half"): (43000.0, 0.0, 0.0, 0.0, 0.41),
    ("wgrad", "nchw", "transposed", "tf32"): (38000.0, 1.9, 0.0, 0.0, 0.0),
    ("wgrad", "nhwc", "dense", "half"): (1500.0, 0.93, 1.2, 1.1, 0.0),
    ("wgrad", "nhwc", "dense", "tf32"): (11000.0, 1.7, 0.0, 0.71, 0.12),
    ("wgrad", "nhwc", "depthwise", "half"): (9900.0, 0.0, 1.5, 0.0, 0.11),
    ("wgrad", "nhwc", "depthwise", "tf32"): (1500.0, 0.0, 0.53, 4300000.0, 0.0),
    ("wgrad", "nhwc", "grouped", "half"): (3000.0, 1.0, 0.0, 0.0, 0.0),
    ("wgrad", "nhwc", "grouped", "tf32"): (3000.0, 3.4, 0.0, 0.0, 0.0),
    ("wgrad", "nhwc", "point", "half"): (8100.0, 0.27, 0.89, 0.0, 0.0),
    ("wgrad", "nhwc", "point", "tf32"): (9100.0, 1.8, 0.0, 0.0, 0.0),
    ("wgrad", "nhwc", "thin", "half"): (1500.0, 0.0, 0.0, 780.0, 0.0),
    ("wgrad", "nhwc", "thin", "tf32"): (13000.0, 2.5, 2.3, 440.0, 0.0),
}
# fmt: on


def rates(direction: str, layout: str, kind: str, dtype: str) -> Rates:
    """The rates of a kind; an unknown kind or dtype takes those of dense TF32 or 16-bit products."""
    group = "half" if dtype in ("float16", "bfloat16") else "tf32"
    return _RATES.get((direction, layout, kind, group)) or _RATES[direction, layout, "dense", group]

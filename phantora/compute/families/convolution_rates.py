"""Rates of convolutions, fitted on the H200 sweeps.

(direction, layout, kind, dtype class) -> (fixed ns, share of the tensor-core product's time, times that the images,
times that the weights cross memory, ns per tap at 1e12 taps a second). In NCHW the library converts images and weights,
the latter slowly.
"""

from __future__ import annotations

Rates = tuple[float, float, float, float, float]

# fmt: off
_RATES: dict[tuple[str, str, str, str], Rates] = {
    ("dgrad", "nchw", "dense", "half"): (16000.0, 0.88, 5.0, 10.0, 0.0),
    ("dgrad", "nchw", "dense", "tf32"): (14000.0, 0.97, 3.8, 6.6, 0.0),
    ("dgrad", "nchw", "depthwise", "half"): (1500.0, 0.0, 11.0, 0.0, 0.71),
    ("dgrad", "nchw", "depthwise", "tf32"): (1500.0, 0.0, 6.3, 0.0, 0.64),
    ("dgrad", "nchw", "grouped", "half"): (13000.0, 2.3, 3.3, 670.0, 0.0),
    ("dgrad", "nchw", "grouped", "tf32"): (37000.0, 0.0, 0.0, 0.0, 1.9),
    ("dgrad", "nchw", "narrow", "half"): (3000.0, 74.0, 0.0, 0.0, 0.0),
    ("dgrad", "nchw", "narrow", "tf32"): (3000.0, 27.0, 0.0, 0.0, 0.0),
    ("dgrad", "nchw", "point", "half"): (3200.0, 0.34, 1.1, 12.0, 0.0),
    ("dgrad", "nchw", "point", "tf32"): (3400.0, 2.0, 0.69, 0.0, 0.0),
    ("dgrad", "nchw", "thin", "half"): (3000.0, 2.7, 0.0, 0.0, 0.0),
    ("dgrad", "nchw", "thin", "tf32"): (3000.0, 1.3, 0.0, 0.0, 0.0),
    ("dgrad", "nchw", "transposed", "half"): (26000.0, 0.0, 0.0, 0.0, 0.58),
    ("dgrad", "nchw", "transposed", "tf32"): (34000.0, 2.0, 0.0, 0.0, 0.0),
    ("dgrad", "nhwc", "dense", "half"): (8200.0, 0.9, 1.3, 0.0, 0.0),
    ("dgrad", "nhwc", "dense", "tf32"): (12000.0, 0.93, 1.3, 0.0, 0.0),
    ("dgrad", "nhwc", "depthwise", "half"): (1500.0, 0.0, 2.9, 1900000.0, 0.0),
    ("dgrad", "nhwc", "depthwise", "tf32"): (1500.0, 0.0, 0.39, 430000.0, 0.26),
    ("dgrad", "nhwc", "grouped", "half"): (6800.0, 1.3, 0.0, 0.0, 0.22),
    ("dgrad", "nhwc", "grouped", "tf32"): (18000.0, 0.0, 2.3, 0.0, 0.0),
    ("dgrad", "nhwc", "narrow", "half"): (3000.0, 44.0, 0.0, 0.0, 0.0),
    ("dgrad", "nhwc", "narrow", "tf32"): (3000.0, 20.0, 0.0, 0.0, 0.0),
    ("dgrad", "nhwc", "point", "half"): (3500.0, 0.17, 1.2, 2.1, 0.0),
    ("dgrad", "nhwc", "point", "tf32"): (3900.0, 0.87, 0.97, 2.8, 0.0),
    ("dgrad", "nhwc", "thin", "half"): (3000.0, 2.1, 0.0, 0.0, 0.0),
    ("forward", "nchw", "dense", "half"): (14000.0, 0.94, 3.3, 10.0, 0.15),
    ("forward", "nchw", "dense", "tf32"): (13000.0, 0.9, 2.5, 6.1, 0.18),
    ("forward", "nchw", "depthwise", "half"): (1500.0, 3.4, 3.4, 0.0, 0.0),
    ("forward", "nchw", "depthwise", "tf32"): (1500.0, 1.6, 1.8, 0.0, 0.0),
    ("forward", "nchw", "grouped", "half"): (15000.0, 1.3, 4.8, 19.0, 0.36),
    ("forward", "nchw", "grouped", "tf32"): (28000.0, 0.0, 0.0, 0.0, 2.0),
    ("forward", "nchw", "narrow", "half"): (3000.0, 4.2, 0.0, 0.0, 0.0),
    ("forward", "nchw", "narrow", "tf32"): (3000.0, 2.7, 0.0, 0.0, 0.0),
    ("forward", "nchw", "point", "half"): (3200.0, 0.0, 1.1, 20.0, 0.0),
    ("forward", "nchw", "point", "tf32"): (4100.0, 1.4, 0.37, 7.6, 0.66),
    ("forward", "nchw", "thin", "half"): (1500.0, 7.4, 5.1, 360.0, 0.12),
    ("forward", "nchw", "thin", "tf32"): (1500.0, 0.0, 3.2, 130.0, 0.17),
    ("forward", "nchw", "transposed", "half"): (33000.0, 0.0, 0.0, 0.0, 0.44),
    ("forward", "nchw", "transposed", "tf32"): (49000.0, 0.0, 0.0, 0.0, 0.82),
    ("forward", "nhwc", "dense", "half"): (7100.0, 0.95, 0.0, 0.0, 0.1),
    ("forward", "nhwc", "dense", "tf32"): (9100.0, 0.95, 0.0, 0.0, 0.1),
    ("forward", "nhwc", "depthwise", "half"): (1500.0, 0.0, 1.4, 550000.0, 0.067),
    ("forward", "nhwc", "depthwise", "tf32"): (1500.0, 0.59, 0.28, 500000.0, 0.0),
    ("forward", "nhwc", "grouped", "half"): (1500.0, 2.1, 0.0, 0.0, 0.0),
    ("forward", "nhwc", "grouped", "tf32"): (20000.0, 0.0, 2.1, 0.0, 0.0),
    ("forward", "nhwc", "narrow", "half"): (3000.0, 2.6, 0.0, 0.0, 0.0),
    ("forward", "nhwc", "narrow", "tf32"): (3000.0, 1.7, 0.0, 0.0, 0.0),
    ("forward", "nhwc", "point", "half"): (3300.0, 0.39, 0.82, 1.6, 0.2),
    ("forward", "nhwc", "point", "tf32"): (5400.0, 0.68, 0.65, 0.0, 0.53),
    ("forward", "nhwc", "thin", "half"): (11000.0, 4.9, 2.5, 0.0, 0.094),
    ("forward", "nhwc", "thin", "tf32"): (10000.0, 4.6, 0.91, 92.0, 0.053),
    ("wgrad", "nchw", "dense", "half"): (13000.0, 0.87, 3.8, 11.0, 0.16),
    ("wgrad", "nchw", "dense", "tf32"): (14000.0, 1.7, 2.8, 5.9, 0.31),
    ("wgrad", "nchw", "depthwise", "half"): (1500.0, 0.35, 0.0, 7300000.0, 0.93),
    ("wgrad", "nchw", "depthwise", "tf32"): (1500.0, 0.22, 0.0, 3600000.0, 0.9),
    ("wgrad", "nchw", "grouped", "half"): (32000.0, 2.1, 0.0, 560.0, 0.0),
    ("wgrad", "nchw", "grouped", "tf32"): (33000.0, 2.2, 3.4, 50.0, 0.41),
    ("wgrad", "nchw", "narrow", "half"): (3000.0, 3.7, 0.0, 0.0, 0.0),
    ("wgrad", "nchw", "narrow", "tf32"): (3000.0, 3.9, 0.0, 0.0, 0.0),
    ("wgrad", "nchw", "point", "half"): (3900.0, 2.1, 0.0, 11.0, 0.0),
    ("wgrad", "nchw", "point", "tf32"): (6700.0, 1.0, 0.71, 18.0, 0.0),
    ("wgrad", "nchw", "thin", "half"): (1500.0, 0.0, 15.0, 590.0, 0.0),
    ("wgrad", "nchw", "thin", "tf32"): (17000.0, 0.0, 4.5, 420.0, 0.0),
    ("wgrad", "nchw", "transposed", "half"): (43000.0, 0.0, 0.0, 0.0, 0.41),
    ("wgrad", "nchw", "transposed", "tf32"): (38000.0, 1.9, 0.0, 0.0, 0.0),
    ("wgrad", "nhwc", "dense", "half"): (6000.0, 0.94, 0.0, 0.0, 0.11),
    ("wgrad", "nhwc", "dense", "tf32"): (12000.0, 1.9, 0.0, 0.0, 0.19),
    ("wgrad", "nhwc", "depthwise", "half"): (14000.0, 0.0, 1.0, 0.0, 0.092),
    ("wgrad", "nhwc", "depthwise", "tf32"): (1500.0, 0.0, 0.0, 2200000.0, 0.2),
    ("wgrad", "nhwc", "grouped", "half"): (15000.0, 0.77, 0.0, 0.0, 0.0),
    ("wgrad", "nhwc", "grouped", "tf32"): (91000.0, 2.4, 0.0, 0.0, 0.0),
    ("wgrad", "nhwc", "narrow", "half"): (3000.0, 2.9, 0.0, 0.0, 0.0),
    ("wgrad", "nhwc", "narrow", "tf32"): (3000.0, 3.9, 0.0, 0.0, 0.0),
    ("wgrad", "nhwc", "point", "half"): (4400.0, 0.65, 0.88, 0.0, 0.0),
    ("wgrad", "nhwc", "point", "tf32"): (6300.0, 1.4, 0.48, 0.0, 0.0),
    ("wgrad", "nhwc", "thin", "half"): (13000.0, 0.0, 8.5, 350.0, 0.0),
    ("wgrad", "nhwc", "thin", "tf32"): (31000.0, 0.0, 2.7, 0.0, 0.11),
}
# fmt: on


def rates(direction: str, layout: str, kind: str, dtype: str) -> Rates:
    """The rates of a kind; an unknown kind or dtype takes those of dense TF32 or 16-bit products."""
    group = "half" if dtype in ("float16", "bfloat16") else "tf32"
    return _RATES.get((direction, layout, kind, group)) or _RATES[direction, layout, "dense", group]

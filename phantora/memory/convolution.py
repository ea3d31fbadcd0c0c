"""Memory that cuDNN's convolutions take while they run: a workspace from the caching allocator, given back at once.

With torch.backends.cudnn.benchmark off, cuDNN's heuristics choose the algorithm, and its workspace is what that
algorithm needs. Measured on an H200 (cuDNN 9.19): the allocator's log and the kernels of a ResNet-50 step, and 28
shapes in three dtypes (validation/data/h200/memory.json). Every workspace is a sum of these:

* Tensor cores (16 bits, TF32) read NHWC. Of NCHW tensors, copies in NHWC are made in the workspace: input, output, and
  the weight unless its kernel is 1x1 (which is the same in both orders). Kernels nchwToNhwcKernel, nhwcToNchwKernel.
  Exact float32 and float64 read NCHW: there NHWC tensors are copied, and the gradient of a weight copies in any case.
* A 1x1 convolution with stride 1 is a product of matrices as it lies (no copies) if rows of pixels are a multiple of
  16 bytes: 56 x 56 and 14 x 14 floats are, 7 x 7 is not. Its weight gradient is one float32 product per image, summed
  afterwards, unless these N products need more memory than the copies would.
* The weight gradient splits its sum over the pixels among the SMs: one float32 tile of 128 x 128 (64 x 64 if there are
  only 64 channels) for each share, as many shares as fit on the SMs at once; 16-bit ones only if there are few tiles.
* Channels are padded to 16 bytes: 16-bit ones, the weight gradient, and all if the tensors are NHWC already (3
  channels of an image; kernel nhwcAddPaddingKernel).

Against these: every workspace of the ResNet-50 step within 8.4 MiB (a forward split is left out), most within 1 KiB; of
the 168 tensor-core ones among the shapes, 9 of 10 within 10 MiB. Exact float32 is rough (Winograd transforms, chosen
here and there, take up to four times the copies). Depthwise convolutions have kernels of their own. cudnn.benchmark on
tries algorithms with larger workspaces in the first step; that is not modelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

_ALIGNMENT_BYTES = 16
_PRODUCTS_OVER_COPIES = 1.1  # 64.0 against 61.3 MiB still takes the products, 128 against 73.5 the copies
_FEW_TILES = 8
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """One convolution: input (N, C, pixels...), weight (K, C / groups, kernel...), output (N, K, pixels...).

    A transposed one is described by the convolution whose gradient it is, input and output exchanged.
    """

    input: tuple[int, ...]
    weight: tuple[int, ...]
    output: tuple[int, ...]
    item_bytes: int
    uses_tensor_cores: bool
    """16-bit floats, or float32 rounded to TF32."""
    is_channels_last: bool
    is_strided: bool
    """Stride, padding or dilation other than the plain one."""
    groups: int
    num_sms: int

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.groups == self.input[1]

    @property
    def is_pointwise(self) -> bool:
        return prod(self.weight[2:]) == 1

    @property
    def is_product(self) -> bool:
        """A product of matrices as the tensors lie."""
        rows_aligned = prod(self.input[2:]) * self.item_bytes % _ALIGNMENT_BYTES == 0
        plain = self.is_pointwise and self.groups == 1 and not self.is_strided
        return plain and rows_aligned and not self.is_channels_last

    @property
    def needs_other_layout(self) -> bool:
        return self.is_channels_last != self.uses_tensor_cores


def forward_bytes(conv: Convolution) -> int:
    """Workspace of the forward direction and, which is the same, of the gradient of the input."""
    if conv.is_depthwise or conv.is_product:
        return 0
    if conv.needs_other_layout:
        return _copies_bytes(conv, pads=conv.item_bytes < _FLOAT_BYTES)
    return _padded_copies_bytes(conv, (conv.input, conv.output, conv.weight)) if conv.is_channels_last else 0


def weight_gradient_bytes(conv: Convolution) -> int:
    """Workspace of the gradient of the weight."""
    if conv.is_depthwise:
        return 0
    if conv.uses_tensor_cores and conv.is_channels_last:
        return _padded_copies_bytes(conv, (conv.input, conv.output)) + _split_sum_bytes(conv)
    copies = _copies_bytes(conv, pads=True)
    if conv.is_product:
        products = conv.input[0] * prod(conv.weight) * _FLOAT_BYTES
        if products <= _PRODUCTS_OVER_COPIES * copies:
            return products if conv.uses_tensor_cores else 0
    return copies + _split_sum_bytes(conv)


def _copies_bytes(conv: Convolution, *, pads: bool) -> int:
    """Input, output and weight in the other layout."""
    weight = () if conv.is_pointwise else (conv.weight,)
    shapes = ((_padded_shape(conv.input, conv.item_bytes) if pads else conv.input), conv.output, *weight)
    return sum(map(prod, shapes)) * conv.item_bytes


def _split_sum_bytes(conv: Convolution) -> int:
    """Partial tiles of the weight gradient: shares of the sum over pixels that run at the same time."""
    rows, columns = conv.weight[0], prod(conv.weight[1:])
    tile = 128 if min(rows, columns) > 64 else 64
    num_tiles = -(-rows // tile) * -(-columns // tile)
    if not conv.uses_tensor_cores or (conv.item_bytes < _FLOAT_BYTES and num_tiles > _FEW_TILES):
        return 0
    if num_tiles >= conv.num_sms:
        shares = conv.num_sms if conv.num_sms < num_tiles < 1.5 * conv.num_sms else 0
    else:
        shares = conv.num_sms // num_tiles * num_tiles
    return shares * tile * tile * _FLOAT_BYTES if shares > num_tiles or num_tiles > conv.num_sms else 0


def _padded_copies_bytes(conv: Convolution, shapes: Sequence[tuple[int, ...]]) -> int:
    """Copies of those tensors whose channels are no multiple of 16 bytes."""
    padded = ((shape, _padded_shape(shape, conv.item_bytes)) for shape in shapes)
    return sum(prod(new) for old, new in padded if new != old) * conv.item_bytes


def _padded_shape(shape: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    multiple = max(_ALIGNMENT_BYTES // item_bytes, 1)
    return (shape[0], -(-shape[1] // multiple) * multiple, *shape[2:])

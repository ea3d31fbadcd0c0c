"""Contents of collectives: the engine knows what members send before anybody reads it, so results are fetched late.

A part whose tensors can have known contents carries them (or None: unknown) in its announcement. Its outputs become
*pending*: native code keeps a token, and asks `fetch` for the bytes when something reads the tensor. The rank therefore
does not wait for its partners when it issues a collective, as it would not on a GPU.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from phantora.intercept import contents as known_contents
from phantora.intercept import session
from phantora.intercept.distributed import reductions

native: Any = sys.modules["phantora_native"]

Payloads = list["bytes | None"]
Decode = Callable[[Payloads], "Tensor | None"]

_MAX_PENDING = 1 << 16  # tokens; outputs that were overwritten unread leave theirs behind
_MAX_REPLIES = 16


def travels(dtype: torch.dtype, num_bytes: int) -> bool:
    """Whether a message of this kind carries its contents: a matter of dtype and size only, so that members agree."""
    if dtype.is_floating_point or dtype.is_complex:
        return num_bytes <= known_contents.FLOATING_LIMIT_BYTES
    if dtype == torch.uint8:
        return num_bytes <= known_contents.BYTE_LIMIT_BYTES
    return num_bytes <= known_contents.INTEGER_LIMIT_BYTES


def size_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.itemsize


def bytes_of(tensor: Tensor) -> bytes:
    """The elements of a CPU tensor in row-major order."""
    flat = tensor.detach().contiguous().view(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def payload_of(tensors: Iterable[Tensor]) -> bytes | None:
    """Known contents of CUDA tensors, one after another; None when some are unknown.

    Stand-ins are sent too: members must agree on counts that came from a policy (balanced routing) as well.
    """
    pieces = []
    for tensor in tensors:
        known = known_contents.known(tensor) if known_contents.is_small(tensor) else None
        if known is None:
            return None
        pieces.append(bytes_of(known))
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def tensor_from(data: bytes, dtype: torch.dtype = torch.uint8) -> Tensor:
    """A flat CPU tensor that owns its memory."""
    if not data:
        return torch.empty(0, dtype=dtype, device="cpu")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype)


# ------------------------------------------------------------------ from payloads to an output's bytes


def whole(member: int) -> Decode:
    """What `member` sent."""

    def decode(payloads: Payloads) -> Tensor | None:
        data = payloads[member]
        return None if data is None else tensor_from(data)

    return decode


def joined(payloads: Payloads) -> Tensor | None:
    """What all members sent, in rank order."""
    pieces = [piece for piece in payloads if piece is not None]
    return tensor_from(b"".join(pieces)) if len(pieces) == len(payloads) else None


def reduced(dtype: torch.dtype, operation: str, begin: int = 0, end: int | None = None) -> Decode:
    """The reduction over all members of bytes begin..end of what each sent."""

    def decode(payloads: Payloads) -> Tensor | None:
        if not reductions.is_computable(operation):
            return None
        pieces = [piece for piece in payloads if piece is not None]
        if len(pieces) != len(payloads) or len({len(piece) for piece in pieces}) != 1:
            return None
        values = [tensor_from(piece[begin:end], dtype) for piece in pieces]
        return reductions.reduce(values, operation).view(torch.uint8) if values[0].numel() else None

    return decode


def addressed(member: int, me: int) -> Decode:
    """The piece for `me` of what `member` packed with `pack`."""

    def decode(payloads: Payloads) -> Tensor | None:
        data = payloads[member]
        return None if data is None else tensor_from(unpack(data)[me])

    return decode


def addressed_by_all(me: int) -> Decode:
    """The pieces for `me` of all members, in rank order."""

    def decode(payloads: Payloads) -> Tensor | None:
        pieces = [unpack(data)[me] for data in payloads if data is not None]
        return tensor_from(b"".join(pieces)) if len(pieces) == len(payloads) else None

    return decode


def pack(pieces: Sequence[bytes]) -> bytes:
    """Pieces for several members in one payload: number of pieces, their lengths (u64, little endian), the pieces."""
    lengths = [len(pieces), *map(len, pieces)]
    return b"".join([number.to_bytes(8, "little") for number in lengths] + list(pieces))


def unpack(data: bytes) -> list[bytes]:
    num_pieces = int.from_bytes(data[:8], "little")
    pieces, position = [], 8 * (1 + num_pieces)
    for index in range(num_pieces):
        length = int.from_bytes(data[8 * (1 + index) : 8 * (2 + index)], "little")
        pieces.append(data[position : position + length])
        position += length
    return pieces


# ------------------------------------------------------------------ pending outputs

_pending: OrderedDict[int, tuple[int, int, int, Decode]] = OrderedDict()
_replies: OrderedDict[tuple[int, int], Payloads | None] = OrderedDict()
_next_token = 0


def expect(output: Tensor, call: int, part: int, decode: Decode) -> None:
    """`output` will hold what `decode` makes of the payloads of part `part` of collective `call`."""
    global _next_token
    if output.numel() == 0 or not output.is_cuda:
        return
    if not known_contents.is_small(output):
        native.shadow_drop(output)
        return
    token, _next_token = _next_token, _next_token + 1
    _pending[token] = (call, part, size_bytes(output), decode)
    if len(_pending) > _MAX_PENDING:
        _pending.popitem(last=False)
    native.shadow_pending(output, token)


def place(output: Tensor, value: Tensor | None) -> None:
    """`output` holds the bytes of `value` from now on (None: unknown)."""
    if output.numel() == 0:
        return
    if value is None or value.numel() * value.itemsize != size_bytes(output):
        forget(output)
    else:
        known_contents.write(output, value.view(torch.uint8).view(output.dtype).view(output.shape))


def forget(output: Tensor) -> None:
    """Nothing is known of what a collective wrote into `output`."""
    native.shadow_drop(output)


def fetch(token: int) -> Tensor | None:
    """What native code asks when a pending output is read: its bytes (flat, uint8, CPU), or None: unknown."""
    entry = _pending.pop(token, None)
    if entry is None:
        return None
    call, part, num_bytes, decode = entry
    payloads = _payloads(call, part)
    value = None if payloads is None else decode(payloads)
    if value is None or value.numel() * value.itemsize != num_bytes:
        return None
    return value.view(torch.uint8)


def _payloads(call: int, part: int) -> Payloads | None:
    key = (call, part)
    if key not in _replies:
        _replies[key] = session.call("payload", token=[call, part])["payloads"] if session.is_connected() else None
        if len(_replies) > _MAX_REPLIES:
            _replies.popitem(last=False)
    return _replies[key]

"""NCCL's environment variables that the model obeys, read in one place.

NCCL_ALGO, NCCL_PROTO: what may be used, or with ^ what may not: 'Ring,Tree', '^LL128', and in NCCL's newer form for
single collectives: 'allreduce:tree,ring;allgather:ring'. NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS (also under the
names NCCL_MIN_CTAS and NCCL_MAX_CTAS) bound the channels; NCCL_NVLS_ENABLE=0
takes NVLS away; NVLSTree means NVLS on one node. Where a choice leaves nothing for a collective, NCCL up to 2.23 runs
a ring with the protocols that are allowed, newer versions end with an error: a simulated run does the former,
`phantora nccl-tests` the latter.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from phantora.errors import UserError, nearest
from phantora.network import constants
from phantora.network.constants import PROTOCOLS, Algorithm, Protocol
from phantora.network.tuner import Candidate, Option

_ALGORITHMS: dict[str, Algorithm] = {
    "ring": "ring", "tree": "tree", "nvls": "nvls", "nvlstree": "nvls_tree", "pat": "pat",
}  # fmt: skip
_NOT_MODELLED = ("collnet", "collnetdirect", "collnetchain")
_PROTOCOLS = {name.lower(): name for name in PROTOCOLS}
_KINDS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "broadcast": "broadcast",
    "reduce": "reduce",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclEnvironment:
    """What the environment allows. Names of kinds are phantora's; the key '' stands for every kind."""

    algorithms: Mapping[str, frozenset[str]]
    protocols: Mapping[str, frozenset[str]]
    min_channels: int = 1
    max_channels: int = constants.MAX_CHANNELS
    nvls: bool = True
    is_strict: bool = False
    """A choice that leaves nothing is an error."""
    text: str = ""
    """NCCL_ALGO and NCCL_PROTO as they were given."""

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None, is_strict: bool = False) -> NcclEnvironment:
        """From `environment`, by default this process's. UserError for words that NCCL does not know."""
        given = os.environ if environment is None else environment
        max_channels = _number(given, ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"), constants.MAX_CHANNELS)
        min_channels = _number(given, ("NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS"), 1)
        known = {**_ALGORITHMS, **dict.fromkeys(_NOT_MODELLED, "none")}
        return cls(
            algorithms=_choices("NCCL_ALGO", given.get("NCCL_ALGO", ""), known),
            protocols=_choices("NCCL_PROTO", given.get("NCCL_PROTO", ""), _PROTOCOLS),
            min_channels=min(min_channels, 64),
            max_channels=max(max_channels, min_channels),
            nvls=given.get("NCCL_NVLS_ENABLE", "1").strip() != "0",
            is_strict=is_strict,
            text=", ".join(f"{name}={given[name]}" for name in ("NCCL_ALGO", "NCCL_PROTO") if given.get(name)),
        )

    def allows(self, kind: str, algorithm: Algorithm, protocol: Protocol) -> bool:
        """Whether a collective of `kind` may use this combination. Send/recv and what is built of it has no choice."""
        if algorithm in ("direct", "p2p", "copy", "none"):
            return True
        chosen = self.algorithms.get(kind, self.algorithms.get(""))
        is_algorithm = chosen is None or algorithm in chosen
        chosen = self.protocols.get(kind, self.protocols.get(""))
        return is_algorithm and (chosen is None or protocol in chosen)


    def allowed(self, kind: str, found: list[Candidate], num_ranks: int) -> list[Option]:
        """What may be used of the candidates. UserError when that is nothing and `is_strict`."""
        options = [(candidate, protocol) for candidate in found for protocol in candidate.latency_ns]
        chosen = [option for option in options if self.allows(kind, option[0].algorithm, option[1])]
        if not chosen and self.is_strict:
            there = ", ".join(f"{candidate.algorithm}/{protocol}" for candidate, protocol in options)
            raise UserError(f"{self.text}: leaves nothing for {kind} of {num_ranks} GPUs, which has {there}")
        protocols = self.protocols.get(kind, self.protocols.get(""))
        rings = [option for option in options if option[0].algorithm == "ring"]
        kept = [option for option in rings if protocols is None or option[1] in protocols]
        return _bare(chosen or kept or rings or options)


def _bare(options: list[Option]) -> list[Option]:
    """A single option is taken whatever NCCL's tuner expects of it."""
    if len(options) > 1:
        return options
    return [(dataclasses.replace(candidate, judged={}), protocol) for candidate, protocol in options]


def _number(given: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    for name in names:
        text = given.get(name, "").strip()
        if text:
            if not re.fullmatch(r"-?[0-9]{1,18}", text):
                raise UserError(f"{name}={text}: must be a whole number")
            if int(text) > 0:  # NCCL takes no notice of others
                return int(text)
    return default


def _choices(name: str, text: str, known: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """Kind ('' for all) -> what it may use."""
    found: dict[str, frozenset[str]] = {}
    for part in filter(None, (part.strip() for part in text.lower().split(";"))):
        kind, colon, listed = part.rpartition(":")
        if colon and kind.strip() not in _KINDS:
            raise UserError(f"{name}={text}: unknown collective {kind.strip()!r}{nearest(kind.strip(), list(_KINDS))}")
        words = [word.strip() for word in listed.lstrip("^").split(",") if word.strip()]
        for word in words:
            if word not in known:
                raise UserError(f"{name}={text}: unknown {word!r}{nearest(word, list(known))}")
        chosen = frozenset(known[word] for word in words)
        if "nvls_tree" in chosen:
            chosen |= {"nvls"}  # on one node
        if listed.startswith("^"):
            chosen = frozenset(known.values()) - chosen
        if words:
            found[_KINDS[kind.strip()] if colon else ""] = chosen
    return found

"""A cluster as plain values (for a file) and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from phantora.cluster.loader import cluster_of
from phantora.cluster.spec import Cluster


def as_plain(cluster: Cluster) -> dict[str, Any]:
    """Tables, lists, numbers and texts, as in a cluster file that leaves nothing out."""
    return _plain(cluster)


def from_plain(data: Mapping[str, Any], shown: str) -> Cluster:
    """The cluster that `as_plain` described. UserError, naming `shown` and the key, when it is none."""
    return cluster_of(data, shown)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        fields = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {name: _plain(inner) for name, inner in fields}
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, tuple) else value

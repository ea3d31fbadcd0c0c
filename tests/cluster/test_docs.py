"""docs/clusters.md names every key of a cluster file."""

from dataclasses import fields
from pathlib import Path

import pytest

from phantora.cluster import spec

DOCS = Path(__file__).parents[2] / "docs" / "clusters.md"
SPECS = [spec.GpuSpec, spec.HostSpec, spec.IntraNodeSpec, spec.NicSpec, spec.FabricSpec, spec.FaultSpec, spec.StragglerSpec, spec.JitterSpec, spec.PlacementSpec]


@pytest.mark.parametrize("owner", SPECS)
def test_every_key_is_documented(owner: type) -> None:
    text = DOCS.read_text()
    assert [field.name for field in fields(owner) if f"| `{field.name}` |" not in text] == []

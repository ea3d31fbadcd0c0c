"""The measured GPU, a slower one, and the reference data where it is present."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantora.cluster.loader import load_cluster
from phantora.compute import Pricer

REFERENCE = Path(__file__).parents[2].parent / "shared" / "reference" / "h200"


@pytest.fixture(scope="session")
def h200() -> Pricer:
    cluster = load_cluster("lab-h200")
    return Pricer(cluster.gpu, cluster.host)


@pytest.fixture(scope="session")
def h100() -> Pricer:
    cluster = load_cluster("dgx-h100")
    return Pricer(cluster.gpu, cluster.host)


@pytest.fixture(scope="session")
def a100() -> Pricer:
    cluster = load_cluster("dgx-a100-80g")
    return Pricer(cluster.gpu, cluster.host)


@pytest.fixture(scope="session")
def reference() -> Path:
    if not REFERENCE.is_dir():
        pytest.skip("the reference measurements (shared/reference/h200) are not here")
    return REFERENCE

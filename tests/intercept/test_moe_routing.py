"""How unknown routers spread their tokens: loads, limits, files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantora.errors import UserError
from phantora.intercept import moe_routing
from phantora.intercept.moe_routing import Routing, parse, token_counts


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=32), st.integers(0, 300), st.integers(1, 8))
def test_every_choice_is_made_and_no_expert_gets_a_token_twice(weights: list[float], tokens: int, k: int) -> None:
    k = min(k, len(weights))
    if not any(weights):
        weights[0] = 1.0
    counts = token_counts(weights, tokens, k)
    assert sum(counts) == tokens * k
    assert all(0 <= count <= tokens for count in counts)


def test_loads_are_proportional_up_to_the_limit() -> None:
    assert token_counts([1] * 4, 10, 2) == [5, 5, 5, 5]
    assert token_counts([4, 2, 1, 1], 80, 1) == [40, 20, 10, 10]
    assert token_counts([100, 1, 1], 10, 2) == [10, 5, 5]  # the first is full; the others share what is left


def test_zipf_and_files(tmp_path: Path) -> None:
    assert parse("balanced") == Routing()
    assert parse("zipf:2").weights(3, 0) == (1, 1 / 4, 1 / 9)
    path = tmp_path / "loads.txt"
    path.write_text("# two routers\n3 1 1 1\n1, 1, 1, 3\n")
    routing = parse(str(path))
    assert [routing.weights(4, call) for call in range(3)] == [(3, 1, 1, 1), (1, 1, 1, 3), (3, 1, 1, 1)]
    assert routing.weights(50_000, 0) is None  # a top-k over a vocabulary is no router of these


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zipf:x", "must be a number"),
        ("zipf:-1", "from 0"),
        ("nowhere.txt", "No such file"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(text)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1 x", "line 1: not a list of numbers"),
        ("0 0", "not all zero"),
        ("# nothing", "no loads"),
        ("1 -1", "not negative"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "loads.txt"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        parse(str(path))


@given(st.integers(1, 10_000))
def test_the_mixing_step_visits_every_token(tokens: int) -> None:
    step = moe_routing.mixing_step(tokens)
    assert len({i * step % tokens for i in range(tokens)}) == tokens

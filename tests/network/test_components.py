"""Groups of connected classes: never too small, and divided again when classes leave."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phantora.network.components import Components


def connected(classes: dict[int, list[int]], link: int) -> set[int]:
    """The true component, by repeated search."""
    links, found = {link}, set[int]()
    while True:
        more = {number for number, its in classes.items() if links & set(its)} - found
        if not more:
            return found
        found |= more
        links.update(*(classes[number] for number in more))


def test_merge_and_divide() -> None:
    components = Components()
    components.add(1, [0, 1])
    components.add(2, [2, 3])
    assert components.of([0]) == [1]
    components.add(3, [1, 2])
    assert components.of([3]) == [1, 2, 3]
    components.remove(3, [1, 2])  # two of three are left: not yet divided
    components.remove(2, [2, 3])
    assert (components.of([0]), components.of([3])) == ([1], [])


@given(st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 7), min_size=1, max_size=3)), max_size=25))
def test_contains_the_true_component(steps: list[tuple[bool, set[int]]]) -> None:
    components, classes = Components(), dict[int, list[int]]()
    for number, (arrives, links) in enumerate(steps):
        if arrives or not classes:
            classes[number] = sorted(links)
            components.add(number, sorted(links))
        else:
            gone = min(classes)
            components.remove(gone, classes.pop(gone))
        for link in range(8):
            found = components.of([link])
            assert connected(classes, link) <= set(found) <= set(classes)

"""Which classes of flows may influence one another: those joined through shared links.

Groups are merged as classes arrive and divided again only when half of a group has left, so a group can be coarser than
the true connected component for a while. That costs time, never truth: rates of unconnected flows do not depend on
being solved together.
"""

from __future__ import annotations

from collections.abc import Iterable


class _Group:
    """Numbers of classes, with their links, and the most that there were since the group was last divided."""

    __slots__ = ("links_of", "links", "peak")

    def __init__(self) -> None:
        self.links_of: dict[int, list[int]] = {}
        self.links: set[int] = set()
        self.peak = 0


class Components:
    """Groups of classes that share links, directly or through others."""

    def __init__(self) -> None:
        self._group_of_link: dict[int, _Group] = {}

    def add(self, number: int, links: list[int]) -> None:
        """A class on these links has come."""
        met = list(dict.fromkeys(group for link in links if (group := self._group_of_link.get(link))))
        group = max(met, key=lambda g: len(g.links), default=None) or _Group()
        for other in met:
            if other is not group:
                group.links_of.update(other.links_of)
                self._take_links(group, other.links)
        self._take_links(group, links)
        group.links_of[number] = links
        group.peak = max(group.peak, len(group.links_of))

    def remove(self, number: int, links: list[int]) -> None:
        """The class has gone."""
        group = self._group_of_link[links[0]]
        del group.links_of[number]
        if 2 * len(group.links_of) <= group.peak:
            for link in group.links:
                del self._group_of_link[link]
            for left, its_links in group.links_of.items():
                self.add(left, its_links)

    def of(self, links: Iterable[int]) -> list[int]:
        """Numbers of all classes that may be connected to `links`, sorted."""
        found: set[int] = set()
        previous: _Group | None = None
        for link in links:
            group = self._group_of_link.get(link)
            if group is not None and group is not previous:
                found.update(group.links_of)
                previous = group
        return sorted(found)

    def _take_links(self, group: _Group, links: Iterable[int]) -> None:
        group.links.update(links)
        self._group_of_link.update(dict.fromkeys(links, group))

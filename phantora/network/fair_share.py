"""Max-min fair rates of flows on links.

A row is a set of equal flows that move together: a path with a count, or the edges of one collective that all carry the
same number of bytes and keep step. On link l it uses u[f, l] times its rate (the number of its flows that cross the
link):

    for every link l:   sum over rows f of  u[f, l] * rate[f]  <=  capacity[l]
    among all such rates, the smallest is as large as possible, then the next smallest, and so on.

The caller sets capacities, links and usages; the solver computes the rates. They are unique, and recognised by this:
every row has a bottleneck, a link that is full and on which no row has a higher rate. A row without links is not
allowed.

Example. Links A and B of capacity 10 and 4; f on A, g on A and B, h on B with count 3:
    A: f + g <= 10,   B: g + 3 h <= 4.   Equal growth fills B first: g = h = 1. Then f grows until A is full: f = 9.

Method: progressive filling, all local minima at once. A link's share is what each unit of usage would get if it were
filled now. A link whose share is the least that any of its rows sees anywhere is a bottleneck whatever else happens
(shares of other links only rise while slower rows are frozen); its rows are frozen at that share. Ten to ninety times
fewer rounds than freezing only the globally tightest link, the textbook form (Bertsekas and Gallager, Data Networks,
section 6.5.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

RELATIVE_TOLERANCE = 1e-12  # shares that differ by less are one bottleneck


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows in compressed form: row f crosses links[starts[f]:starts[f + 1]] with the usages at the same places."""

    starts: Indices
    links: Indices
    usages: Floats

    def __post_init__(self) -> None:
        assert len(self.links) == len(self.usages) == self.starts[-1]
        assert bool(np.all(self.starts[1:] > self.starts[:-1])), "a row without links has no fair rate"

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.starts) - 1


def make_rows(links: Sequence[Indices], usages: Sequence[Floats]) -> Rows:
    """Rows from one array of links and one of usages per row."""
    starts = np.zeros(len(links) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in links], out=starts[1:])
    return Rows(starts=starts, links=np.concatenate(links), usages=np.concatenate(usages))


def solve(rows: Rows, capacities: Floats) -> Floats:
    """Max-min fair rate of each row: shape [num_rows], in the unit of `capacities` (one per link)."""
    used, links = np.unique(rows.links, return_inverse=True)
    remaining = capacities[used].astype(np.float64)
    row_of_entry = np.repeat(np.arange(rows.num_rows), np.diff(rows.starts))
    usages = rows.usages
    rates = np.zeros(rows.num_rows)
    while len(links):
        share = _shares(remaining, links, usages)
        newly, rate = _local_minima(row_of_entry, links, share, rows.num_rows)
        rates[newly] = rate[newly]
        frozen = newly[row_of_entry]
        taken = usages[frozen] * rates[row_of_entry[frozen]]
        remaining = remaining - np.bincount(links[frozen], weights=taken, minlength=len(remaining))
        active = ~frozen
        row_of_entry, links, usages = row_of_entry[active], links[active], usages[active]
    return rates


def bottlenecks(rows: Rows, capacities: Floats, rates: Floats) -> Indices:
    """A link that is full and on which no row has a higher rate, for each row; -1 where there is none within 1e-9."""
    row_of_entry = np.repeat(np.arange(rows.num_rows), np.diff(rows.starts))
    rate_of_entry = rates[row_of_entry]
    used = np.bincount(rows.links, weights=rows.usages * rate_of_entry, minlength=len(capacities))
    highest = np.zeros(len(capacities))
    np.maximum.at(highest, rows.links, rate_of_entry)
    is_full = used >= capacities * (1 - 1e-9)
    holds = is_full[rows.links] & (rate_of_entry >= highest[rows.links] * (1 - 1e-9))
    found = np.full(rows.num_rows, -1, dtype=np.int64)
    places = np.flatnonzero(holds)[::-1]  # the first of each row is written last
    found[row_of_entry[places]] = rows.links[places]
    return found


def _shares(remaining: Floats, links: Indices, usages: Floats) -> Floats:
    """What one unit of usage gets on each link if it is filled now; infinite where nothing is left to fill it."""
    load = np.bincount(links, weights=usages, minlength=len(remaining))
    share = np.full(len(remaining), np.inf)
    np.divide(np.maximum(remaining, 0.0), load, out=share, where=load > 0)
    return share


def _local_minima(
    row_of_entry: Indices, links: Indices, share: Floats, num_rows: int
) -> tuple[NDArray[np.bool_], Floats]:
    """(which rows cross a bottleneck, the least share that each row sees)."""
    share_of_entry = share[links]
    begins = np.flatnonzero(np.diff(row_of_entry, prepend=-1))
    least = np.full(num_rows, np.inf)
    least[row_of_entry[begins]] = np.minimum.reduceat(share_of_entry, begins)
    seen = np.full(len(share), np.inf)
    np.minimum.at(seen, links, least[row_of_entry])
    bottleneck = seen >= share * (1.0 - RELATIVE_TOLERANCE)
    newly = np.zeros(num_rows, dtype=np.bool_)
    newly[row_of_entry[bottleneck[links]]] = True
    return newly, least

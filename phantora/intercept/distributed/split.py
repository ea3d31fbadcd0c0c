"""dist.split_group without ncclCommSplit: the members of one part make a group among themselves."""

from __future__ import annotations

import copy
import datetime
from typing import Any

import torch

from phantora.intercept.distributed import groups


def patch(c10d: Any) -> None:
    def split_group(
        parent_pg: Any = None,
        split_ranks: list[list[int]] | None = None,
        timeout: datetime.timedelta | None = None,
        pg_options: Any = None,
        group_desc: str | None = None,
        backend: str | None = None,
        **_: Any,
    ) -> Any:
        return _split(c10d, parent_pg, split_ranks, timeout, pg_options, group_desc, backend)

    split_group.__doc__ = c10d.split_group.__doc__
    c10d.split_group = split_group


def _split(c10d: Any, parent: Any, split_ranks: Any, timeout: Any, options: Any, desc: str | None, backend: Any) -> Any:
    if not split_ranks:
        raise ValueError("split_ranks cannot be None or empty")
    default = c10d._get_default_group()
    if not default.bound_device_id:
        raise RuntimeError("No device associated with the default pg, not safe to split any process groups")
    parent = parent or default
    to_global = c10d.get_process_group_ranks(parent)
    _check(split_ranks, default.size())
    parent_group = groups.of_process_group(parent)
    number, parent_group.num_splits = parent_group.num_splits, parent_group.num_splits + 1
    mine = next((sorted(ranks) for ranks in split_ranks if parent.rank() in ranks), None)
    if mine is None:
        return None
    parent_options = parent._get_backend(torch.device("cuda")).options
    desc = desc or f"{parent.group_desc}:split:{parent_options.num_splits}"
    parent_options.num_splits += 1
    return _make(
        c10d,
        parent,
        [to_global[rank] for rank in mine],
        number,
        timeout,
        options or copy.deepcopy(parent_options),
        desc,
        backend,
    )


def _check(split_ranks: list[list[int]], world_size: int) -> None:
    for ranks in split_ranks:
        if not ranks:
            raise ValueError("the split group cannot be empty")
        if len(ranks) > world_size:
            raise ValueError(
                "the split group's size should be less or equal to the world_size set by init_process_group"
            )
        if len(ranks) != len(set(ranks)):
            raise ValueError("the split group cannot have duplicate ranks")


def _make(
    c10d: Any, parent: Any, ranks: list[int], number: int, timeout: Any, options: Any, desc: str, backend: Any
) -> Any:
    """The names that torch gives to splits differ between members whose numbers of groups differ; the wire's do not."""
    default = c10d._get_default_group()
    backend = c10d.Backend(backend or c10d._world.pg_map[parent][0])
    parent_group = groups.of_process_group(parent)
    options.wire_name = f"{parent_group.name}.split{number}"
    name = c10d._process_group_name(ranks, use_hashed_name=True)
    if timeout is None:
        timeout = c10d._get_default_timeout(backend)
    options._timeout = timeout
    made, _ = c10d._new_process_group_helper(
        len(ranks),
        ranks.index(default.rank()),
        ranks,
        backend,
        c10d._world.pg_map[default][1],
        name,
        backend_options=options,
        timeout=timeout,
        device_id=default.bound_device_id,
        group_desc=desc,
    )
    c10d._world.pg_group_ranks[made] = {rank: index for index, rank in enumerate(ranks)}
    return made

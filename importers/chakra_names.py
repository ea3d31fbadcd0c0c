"""Misspelt names of Chakra attributes. Readers ask for attributes by name, so 'pg_nam' would be ignored in silence.

Foreign tools write attributes of their own, which are nobody's mistake: only a name next to one that is read, and
not known to be another tool's, counts as misspelt.
"""

from __future__ import annotations

from functools import lru_cache

# What importers/ and astra/ read. Shorter ones (tid, row) have too many neighbours to tell mistakes from other names.
_READ = (
    "comm_dst", "comm_size", "comm_src", "comm_tag", "comm_type", "duration_ns", "involved_dim", "is_cpu_op",
    "num_ops", "pg_name", "stream", "tensor_size",
)  # fmt: skip
# Names near those that are not mistakes: of mlcommons/chakra (et_def.proto, converter, generator) and of units.
_OTHERS = frozenset(
    (
        "comm_priority comm_group comm_id comm_algo comm_time comm_dim comm_root comm_rank pg_desc pg_size pg_id "
        "op_name tensor_loc tensor_type tensor_id is_gpu_op duration_us duration_ms duration_s num_kernels"
    ).split()
)
_LONG = 9  # from so many letters on, two mistakes are a misspelling; of fewer, one


@lru_cache(maxsize=4096)
def meant(name: str) -> str:
    """The name that is read and of which `name` is a misspelling; '' if it is none."""
    if name in _READ or name in _OTHERS or not 4 <= len(name) <= 20:
        return ""
    near = [(_distance(_plain(name), _plain(known)), known) for known in _READ]
    distance, known = min(near)
    return known if distance <= (2 if len(known) >= _LONG else 1) else ""


def _plain(name: str) -> str:
    """Without what differs between styles of writing: commSize, comm-size and Comm_Size are one."""
    return name.lower().replace("_", "").replace("-", "").replace(" ", "").replace(".", "")


def _distance(a: str, b: str) -> int:
    """Letters to insert, delete, change or swap with their neighbour (Damerau, Commun. ACM 1964)."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        above, row = row, [i]
        for j, other in enumerate(b, 1):
            best = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                best = min(best, before[j - 2] + 1)
            row.append(best)
        before = above
    return row[-1]

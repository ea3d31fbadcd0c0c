"""Numbers for people: three significant digits and a unit."""

from __future__ import annotations


def time_text(ns: int) -> str:
    """'812 ns', '22.3 ms', '1.52 s', '2 min 05 s', '3 h 12 min'."""
    if ns >= 3_600_000_000_000:
        return "{} h {:02d} min".format(*divmod(ns // 60_000_000_000, 60))
    if ns >= 100_000_000_000:
        return "{} min {:02d} s".format(*divmod(ns // 1_000_000_000, 60))
    for size, unit in ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")):
        if ns >= size:
            return f"{_three_digits(ns / size)} {unit}"
    return f"{ns} ns"


def bytes_text(num_bytes: int) -> str:
    """'512 B', '32.0 MiB', '1.50 GiB' (powers of 1024)."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if num_bytes >= 1024**power:
            return f"{_three_digits(num_bytes / 1024**power)} {unit}"
    return f"{num_bytes} B"


def rate_text(bytes_per_s: float) -> str:
    """'371 GB/s' (powers of 1000, as nccl-tests)."""
    for size, unit in ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if bytes_per_s >= size:
            return f"{_three_digits(bytes_per_s / size)} {unit}"
    return f"{bytes_per_s:.0f} B/s"


def _three_digits(value: float) -> str:
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"

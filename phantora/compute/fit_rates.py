"""Fits the rates of families/rates.py and families/convolution_rates.py to benchmark rows and rewrites these modules.

usage: python -m phantora.compute.fit_rates ROWS.jsonl.gz...

Every kind's time is a sum of a few terms (a fixed time, elements, traffic ...) with factors that are not negative. All
subsets of the terms are fitted by least squares on relative errors, reweighted towards their median; a subset with
fewer terms wins unless one more explains clearly more.
"""

from __future__ import annotations

import argparse
import itertools
from collections import defaultdict
from pathlib import Path

import numpy as np

from phantora.compute import families
from phantora.compute.build_table import H200, points, read_rows
from phantora.compute.families.convolution import features
from phantora.compute.roof import Roof
from phantora.compute.table import measured_gpu

_COST_OF_A_TERM = 0.04
_FOLDER = Path(families.__file__).parent
_SORTED_DUPLICATES_NS = 60_000.0  # the sort before an accumulating index_put


def non_negative(terms: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Factors of the columns of `terms` (points x terms) that give `times`."""
    relative, best = terms / times[:, None], (np.inf, np.zeros(terms.shape[1]))
    for count in range(1, terms.shape[1] + 1):
        for chosen in itertools.combinations(range(terms.shape[1]), count):
            if len(times) <= count:
                continue
            factors, error = _fit(relative[:, chosen])
            if (factors >= 0).all() and error * (1 + _COST_OF_A_TERM * count) < best[0]:
                full = np.zeros(terms.shape[1])
                full[list(chosen)] = factors
                best = (error * (1 + _COST_OF_A_TERM * count), full)
    return best[1]


def _fit(relative: np.ndarray) -> tuple[np.ndarray, float]:
    weights = np.ones(len(relative))
    for _ in range(4):
        factors = np.linalg.lstsq(relative * weights[:, None], weights, rcond=None)[0]
        logs = np.abs(np.log(np.maximum(relative @ factors, 1e-3)))
        weights = 1.0 / np.sqrt(np.maximum(logs, 0.05))
    return factors, float(logs.mean())


def _two(value: float) -> float:
    return float(f"{value:.2g}")


def item_rates(found: dict[str, list[tuple[tuple[int, ...], float]]], roof: Roof) -> list[str]:
    lines = []
    for kind, rows in sorted(found.items()):
        times = np.array([ns for _, ns in rows])
        terms = np.array([[1500.0, at[0] * 0.01, roof.stream_ns(at[1])] for at, _ in rows])
        if len(rows) < 4 or len({at for at, _ in rows}) < 3:  # too few sizes to tell terms apart
            fixed = _SORTED_DUPLICATES_NS if kind.startswith("index_put_acc") else 1500.0
            factors = np.array([fixed / 1500, float(np.median(np.maximum(times - fixed, 1.0) / terms[:, 1])), 0.0])
        else:
            factors = non_negative(terms, times)
        rate = 1e11 / factors[1] if factors[1] > 1e-9 else 1e16
        lines.append(f'    "{kind}": ({max(_two(factors[0] * 1500), 1500):.1f}, {rate:.2g}, {_two(factors[2])}),')
    return lines


def row_rates(found: dict[str, list[tuple[tuple[int, ...], float, int]]], roof: Roof) -> list[str]:
    lines = []
    for kind, rows in sorted(found.items()):
        terms = [
            [1e3, at[0], at[1], at[0] * at[1] * 1e-3, roof.stream_ns(at[0] * at[1] * size)] for at, _, size in rows
        ]
        f = non_negative(np.array(terms), np.array([ns for _, ns, _ in rows]))
        values = f"{max(_two(f[0] * 1e3), 1500):.1f}, {_two(f[1])}, {_two(f[2])}, {_two(f[3] * 1e-3)}, {_two(f[4])}"
        lines.append(f'    "{kind}": ({values}),')
    return lines


def convolution_rates(found: dict[tuple[str, ...], list[tuple[tuple[int, ...], float, str]]], roof: Roof) -> list[str]:
    lines = []
    for kind, rows in sorted(found.items()):
        times = np.array([ns for _, ns, _ in rows])
        terms = np.array([features(kind[0], dtype, at, roof) for at, _, dtype in rows]) * [1e3, 1, 1, 1, 1]
        if len(rows) < 3:
            factors = np.array([3.0, float(np.median(times / terms[:, 1])), 0, 0, 0])
        else:
            factors = non_negative(terms, times)
        values = ", ".join(str(_two(f)) for f in factors[1:])
        name = ", ".join(f'"{word}"' for word in kind)
        lines.append(f"    ({name}): ({max(_two(factors[0]) * 1e3, 1500):.1f}, {values}),")
    return lines


def replace_table(path: Path, head: str, lines: list[str]) -> None:
    """Puts `lines` between the line that begins with `head` and the next line that is a closing brace."""
    text = path.read_text(encoding="utf-8")
    begin = text.index("\n", text.index(f"\n{head}") + 1) + 1
    end = text.index("\n}", begin - 1) + 1
    path.write_text(text[:begin] + "\n".join(lines) + "\n" + text[end:], encoding="utf-8")


def fit(rows: list[dict[str, object]]) -> None:
    gpu = measured_gpu(H200, _FOLDER)
    roof, items, by_rows, images = Roof(gpu), defaultdict(list), defaultdict(list), defaultdict(list)
    for curve, at, ns, *_ in points(rows, gpu):
        words = curve.split("/")
        if words[0] == "items":
            items[words[1]].append((at, ns))
        elif words[0] == "rows":
            by_rows[words[1]].append((at, ns, int(words[2])))
        elif words[0] == "conv":
            group = "half" if words[4] in ("bfloat16", "float16") else "tf32"
            images[(*words[1:4], group)].append((at, ns, words[4]))
    replace_table(_FOLDER / "rates.py", "RATES", item_rates(items, roof))
    replace_table(_FOLDER / "rates.py", "ROW_RATES", row_rates(by_rows, roof))
    replace_table(_FOLDER / "convolution_rates.py", "_RATES", convolution_rates(images, roof))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="+")
    fit([row for path in parser.parse_args().rows for row in read_rows(path)])


if __name__ == "__main__":
    main()

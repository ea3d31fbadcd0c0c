"""Put the results of several run_all.py runs into one folder of data.

usage: python collect.py --out DIR RUN_DIR [RUN_DIR ...]

Rows of the lists get a `run` column, 1 for the first folder; of single documents and timelines the last run's stays.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

LISTS = ("collectives.json", "forced.json", "overlap.json", "training.json", "host.json", "copies.json")
DOCUMENTS = ("machine.json", "choices.json")


def collect(runs: list[Path], out: Path) -> None:
    (out / "timelines").mkdir(parents=True, exist_ok=True)
    for name in LISTS:
        rows = [
            {"run": number} | row
            for number, run in enumerate(runs, 1) if (run / name).exists()
            for row in json.loads((run / name).read_text())
        ]  # fmt: skip
        (out / name).write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    for run in runs:
        for path in [run / name for name in DOCUMENTS if (run / name).exists()]:
            shutil.copy(path, out)
        for path in (run / "timelines").glob("*.json.gz"):
            shutil.copy(path, out / "timelines")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN_DIR")
    options = parser.parse_args()
    collect(options.runs, options.out)


if __name__ == "__main__":
    main()

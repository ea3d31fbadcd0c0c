"""python -m phantora.validation hardware ...: compares simulations with measurements."""

from __future__ import annotations

import sys

from phantora.errors import UserError
from phantora.validation import compiled, hardware, megatron_tables, nccl, profiles, torchtitan_tables, two_gpus, vidur


def main() -> int:
    commands = {
        "compiled": compiled.main, "hardware": hardware.main, "megatron": megatron_tables.main, "nccl": nccl.main,
        "profiles": profiles.main, "torchtitan": torchtitan_tables.main, "two-gpus": two_gpus.main, "vidur": vidur.main,
    }  # fmt: skip
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        print(f"usage: python -m phantora.validation {{{', '.join(commands)}}} ...", file=sys.stderr)
        return 2
    try:
        return commands[sys.argv[1]](sys.argv[2:])
    except UserError as error:
        print(f"phantora: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

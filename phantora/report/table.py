"""The text at the end of a run, drawn with rich from a summary (report/summary.py)."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phantora.report.summary import summarize
from phantora.report.units import bytes_text, rate_text, time_text
from phantora.trace.model import Run

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_PIPED_WIDTH = 120
_ALL_RANKS = 8  # up to here every rank gets a line
_NUM_COLLECTIVES, _NUM_GUESSES = 8, 3
_COMPUTE, _COMMUNICATION, _IDLE = "green", "magenta", "bright_black"


_FILE_TEXTS = {
    "summary": "this and more, for programs",
    "chakra": "for ASTRA-sim and replay",
    "operators": "what `phantora calibrate --from` measures on a GPU",
    "logs": "what the ranks printed",
}


def print_report(
    run: Run, files: Mapping[str, Path], console: Console | None = None, summary: Mapping[str, Any] | None = None
) -> None:
    """Print the result of a run; files: what ('summary', 'perfetto', 'chakra', 'logs', ...) -> path; summary: of the run, if
    it was made already."""
    print_summary(summarize(run) if summary is None else summary, files, console)


def print_summary(summary: Mapping[str, Any], files: Mapping[str, Path], console: Console | None = None) -> None:
    """Print a summary, such as one read back from summary.json."""
    from rich.console import Console

    # Not a terminal: a fixed width, so that what is piped does not depend on anything.
    console = console or (Console() if sys.stdout.isatty() else Console(width=_PIPED_WIDTH))
    _print_head(console, summary)
    _print_ranks(console, summary)
    _print_steps(console, summary)
    _print_collectives(console, summary)
    _print_prices(console, summary)
    _print_warnings(console, summary)
    _print_files(console, files)


def _print_head(console: Console, summary: Mapping[str, Any]) -> None:
    from rich.text import Text

    cluster, world_size = summary["cluster"], summary["world_size"]
    ranks = f"{world_size} rank{'s' if world_size != 1 else ''}"
    gpu = f" ({cluster['gpu']})" if cluster["gpu"] else ""
    console.print()
    console.print(Text(shlex.join(summary["command"]), "bold"), overflow="ellipsis", no_wrap=True)
    line = Text.assemble((time_text(summary["virtual_ns"]), "bold cyan"), f" on {ranks} of {cluster['name']}{gpu}, ")
    line.append_text(Text.assemble("simulated in ", (time_text(round(summary["wall_s"] * 1e9)), "bold")))
    console.print(line)
    if summary["error"]:
        console.print(Text.assemble(("stopped early: ", "bold red"), summary["error"].splitlines()[0]))
    elif not summary["complete"]:
        console.print("not complete: the run was ended before the script was", style="bold yellow")
    failed = [f"{rank['rank']} (exit code {rank['exit_code']})" for rank in summary["ranks"] if rank["exit_code"]]
    if failed:
        more = f" and {len(failed) - _ALL_RANKS} more" if len(failed) > _ALL_RANKS else ""
        console.print(Text.assemble(("failed ranks: ", "bold red"), ", ".join(failed[:_ALL_RANKS]) + more))


def _print_ranks(console: Console, summary: Mapping[str, Any]) -> None:
    shown = _shown_ranks(summary["ranks"])
    if not shown:
        return
    wide = console.width >= 110
    table = _table(
        "rank", "", "compute", "exposed comm", "idle", "peak allocated", *(["reserved", "kernels"] if wide else [])
    )
    table.columns[1].justify = "left"
    bar_width = min(max(console.width - (86 if wide else 62), 10), 40)
    for label, rank in shown:
        window = max(rank["compute_ns"] + rank["exposed_communication_ns"] + rank["idle_ns"], 1)
        cells = [f"{100 * rank[key] / window:.1f} %" for key in ("compute_ns", "exposed_communication_ns", "idle_ns")]
        more = [bytes_text(rank["peak_reserved_bytes"]), f"{rank['num_kernels']:,}"] if wide else []
        table.add_row(label, _bar(rank, bar_width), *cells, bytes_text(rank["peak_allocated_bytes"]), *more)
    _section(console, "Where the time went", table, _legend())
    _print_memory(console, summary)


def _print_memory(console: Console, summary: Mapping[str, Any]) -> None:
    """The rank that needs most memory, against what the GPU has."""
    from rich.text import Text

    capacity = summary["cluster"]["gpu_memory_bytes"]
    most = max(summary["ranks"], key=lambda rank: (rank["peak_reserved_bytes"], -rank["rank"]))
    if not capacity or not most["peak_reserved_bytes"]:
        return
    share = most["peak_reserved_bytes"] / capacity
    line = Text.assemble(
        "Peak memory ", (bytes_text(most["peak_reserved_bytes"]), "bold cyan" if share < 0.9 else "bold red")
    )
    line.append(f" reserved of {bytes_text(capacity)} ({100 * share:.0f} %), rank {most['rank']}")
    console.print()
    console.print(line)


def _shown_ranks(ranks: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """All ranks, or of many the slowest (least time in communication: the others wait for it), median and fastest."""
    if len(ranks) <= _ALL_RANKS:
        return [(str(rank["rank"]), rank) for rank in ranks]
    ordered = sorted(ranks, key=lambda r: (r["exposed_communication_ns"], -r["host_end_ns"], r["rank"]))
    picks = (("slowest", ordered[0]), ("median", ordered[len(ordered) // 2]), ("fastest", ordered[-1]))
    return [(f"{rank['rank']} ({label})", rank) for label, rank in picks]


def _bar(rank: Mapping[str, Any], width: int) -> Text:
    """Shares of compute, exposed communication and idle as one bar; told apart without colour too."""
    from rich.text import Text

    parts = (
        (rank["compute_ns"], "█", _COMPUTE),
        (rank["exposed_communication_ns"], "▒", _COMMUNICATION),
        (rank["idle_ns"], "·", _IDLE),
    )
    total, text, so_far, drawn = max(sum(part[0] for part in parts), 1), Text(), 0, 0
    for ns, mark, style in parts:
        so_far += ns
        upto = round(width * so_far / total)
        text.append(mark * (upto - drawn), style)
        drawn = upto
    return text


def _print_steps(console: Console, summary: Mapping[str, Any]) -> None:
    from rich.text import Text

    steps = summary["steps"]
    if not steps:
        return
    durations = sorted(step["duration_ns"] for step in (steps[1:] if len(steps) > 2 else steps))
    line = Text.assemble("Step time ", (time_text(durations[len(durations) // 2]), "bold cyan"))
    line.append(
        f" (median of {len(durations)}" + (f", first {time_text(steps[0]['duration_ns'])})" if len(steps) > 2 else ")")
    )
    console.print(line)


def _print_collectives(console: Console, summary: Mapping[str, Any]) -> None:
    entries = sorted(summary["collectives"], key=lambda c: (-c["total_ns"], c["kind"], c["group_size"], c["bytes"]))
    if not entries:
        return
    table = _table("collective", "ranks", "size", "count", "total time", "busbw")
    for c in entries[:_NUM_COLLECTIVES]:
        busbw = rate_text(c["mean_busbw_bytes_per_s"]) if c["mean_busbw_bytes_per_s"] else "-"
        table.add_row(
            c["kind"], str(c["group_size"]), bytes_text(c["bytes"]), f"{c['count']:,}", time_text(c["total_ns"]), busbw
        )
    _section(console, "Communication", table)
    if len(entries) > _NUM_COLLECTIVES:
        rest = sum(c["total_ns"] for c in entries[_NUM_COLLECTIVES:])
        console.print(
            f"  and {len(entries) - _NUM_COLLECTIVES} more ({time_text(rest)}), see summary.json", style="dim"
        )


def _print_prices(console: Console, summary: Mapping[str, Any]) -> None:
    from rich.text import Text

    shares = summary["price_sources"]
    if not any(shares.values()):
        return
    line = Text("Kernel time by price: ")
    styles = {"measured": "green", "interpolated": "cyan", "roofline": "yellow"}
    line.append_text(
        Text(", ").join(Text(f"{name} {100 * shares[name]:.1f} %", style) for name, style in styles.items())
    )
    console.print()
    console.print(line)
    for guess in summary["costliest_guesses"][:_NUM_GUESSES]:
        text = f"  guessed: {guess['op']} {guess['inputs']}"
        share = f" {100 * guess['share']:.1f} %"
        console.print(Text(text[: max(console.width - len(share), 20)] + share, "dim"))


def _print_warnings(console: Console, summary: Mapping[str, Any]) -> None:
    from rich.text import Text

    reads = summary["stand_in_values"]
    if reads:
        console.print()
        console.print(
            Text(f"{sum(reads.values()):,} reads of values that were not computed (a stand-in was used):", "yellow")
        )
        worst = sorted(reads.items(), key=lambda item: (-item[1], item[0]))
        for where, count in worst[:_NUM_GUESSES]:
            console.print(Text(f"  {count:,} x {where}", "dim"))
        if len(worst) > _NUM_GUESSES:
            console.print(Text(f"  and {len(worst) - _NUM_GUESSES} more places, see summary.json", "dim"))
    for note in summary["notes"]:
        console.print(Text.assemble(("note: ", "yellow"), note))


def _print_files(console: Console, files: Mapping[str, Path]) -> None:
    """One line each; a path is never broken, so that it can be copied, and what it is comes if there is room."""
    from rich.text import Text

    if not files:
        return
    console.print()
    paths = {what: os.path.relpath(path) for what, path in files.items()}
    paths = {what: path if len(path) < len(str(files[what])) else str(files[what]) for what, path in paths.items()}
    width = max(map(len, paths.values()))
    for what, path in paths.items():
        hint = _view_hint(path) if what == "perfetto" else _FILE_TEXTS.get(what, "")
        line = Text.assemble((f"{what:<9} ", "dim"), (path, "bold"))
        if hint and 12 + width + len(hint) <= console.width:
            line.append(" " * (width - len(path) + 2) + hint, "dim")
        console.print(line, soft_wrap=True)


def _view_hint(trace: str) -> str:
    """The command that shows a trace: by its run's folder, if it has the name that it has there."""
    folder, name = os.path.split(trace)
    return f"phantora view {shlex.quote((folder or '.') if name == 'trace.pftrace' else trace)}"


def _section(console: Console, title: str, table: Table, legend: Text | None = None) -> None:
    from rich.text import Text

    console.print()
    console.print(Text.assemble((title, "bold"), legend or ""))
    console.print(table)


def _legend() -> Text:
    from rich.text import Text

    parts = (("█", _COMPUTE), " compute  ", ("▒", _COMMUNICATION), " exposed communication  ", ("·", _IDLE), " idle")
    return Text.assemble("   ", *parts)


def _table(first: str, *others: str) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), header_style="dim", pad_edge=True)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table

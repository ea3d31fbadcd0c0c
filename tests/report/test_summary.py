"""summary.json: figures, schema, documentation, determinism."""

import copy
import json
from pathlib import Path

import pytest
from made_up_run import SIGNATURES, Builder, made_up_run

from phantora.report.summary import SCHEMA, summarize, validate_summary, write_summary
from phantora.trace.model import Run


@pytest.fixture(scope="module")
def summary():
    return summarize(made_up_run())


def test_figures(summary):
    run = made_up_run()
    assert summary["virtual_ns"] == run.virtual_ns
    assert [rank["rank"] for rank in summary["ranks"]] == [0, 1, 2, 3]
    first = summary["ranks"][0]
    assert first["peak_allocated_bytes"] == 3 * 2**30 + 2 * 2**28
    kernels = [number for number in run.ranks[0].signature if number >= 0]
    assert first["num_kernels"] == sum(SIGNATURES[number].num_kernels for number in kernels)
    assert first["num_communications"] == len(run.ranks[0].signature) - len(kernels)
    assert first["compute_ns"] + first["exposed_communication_ns"] + first["idle_ns"] == first["host_end_ns"]


def test_collectives(summary):
    gather = next(c for c in summary["collectives"] if c["kind"] == "all_gather")
    assert (gather["group_size"], gather["bytes"], gather["count"], gather["total_ns"]) == (4, 2**28, 6, 6 * 680_000)
    assert gather["mean_busbw_bytes_per_s"] == round(0.75 * 2**28 / 680e-6)


def test_prices(summary):
    assert sum(summary["price_sources"].values()) == pytest.approx(1, abs=2e-6)
    guesses = summary["costliest_guesses"]
    assert [guess["op"] for guess in guesses] == ["aten::_fused_adamw_", "aten::cross_entropy_loss"]
    assert sum(guess["share"] for guess in guesses) == pytest.approx(summary["price_sources"]["roofline"], abs=2e-6)


def test_steps(summary):
    assert [step["name"] for step in summary["steps"]] == ["step 0", "step 1", "step 2"]
    assert sum(step["duration_ns"] for step in summary["steps"]) == summary["virtual_ns"]


def test_is_valid_and_survives_json(summary, tmp_path):
    validate_summary(summary)
    path = write_summary(made_up_run(), tmp_path)
    assert json.loads(path.read_text()) == summary
    empty = summarize(Run(["x"], "c", 1, 1))
    validate_summary(empty)
    validate_summary(summarize(Builder(1).finish()))


@pytest.mark.parametrize("change,message", [
    (lambda s: s.pop("virtual_ns"), "summary.virtual_ns is missing"),
    (lambda s: s.update(colour="red"), "summary.colour is not known"),
    (lambda s: s.update(world_size="4"), "summary.world_size must be int, not str"),
    (lambda s: s["ranks"][2].update(idle_ns=0.5), r"summary.ranks\[2\].idle_ns must be int, not float"),
    (lambda s: s["ranks"][0].update(rank=True), r"ranks\[0\].rank must be int, not bool"),
    (lambda s: s["stand_in_values"].update(here="often"), "stand_in_values.here must be int"),
    (lambda s: s.update(schema_version=99), "schema_version is 99"),
])  # fmt: skip
def test_validation_names_the_field(summary, change, message):
    broken = copy.deepcopy(summary)
    change(broken)
    with pytest.raises(ValueError, match=message):
        validate_summary(broken)


def test_only_the_line_of_wall_s_differs(tmp_path):
    first, second = made_up_run(), made_up_run()
    second.wall_s = 99.0
    texts = [write_summary(run, tmp_path / str(i)).read_text().splitlines() for i, run in enumerate((first, second))]
    differing = [(a, b) for a, b in zip(*texts) if a != b]
    assert len(texts[0]) == len(texts[1])
    assert differing == [('  "wall_s": 12.5,', '  "wall_s": 99.0,')]


def test_every_field_is_documented():
    text = (Path(__file__).parents[2] / "docs/summary.md").read_text()

    def names(schema):
        for inner in [schema] if isinstance(schema, dict) else schema if isinstance(schema, list) else []:
            for key, value in inner.items() if isinstance(inner, dict) else []:
                if isinstance(key, str):
                    yield key
                yield from names(value)

    assert [name for name in names(SCHEMA) if f"`{name}`" not in text] == []

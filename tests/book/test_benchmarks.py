"""The benchmarks run as `make bench` runs them, at toy size."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

import mergelib as ml
from benchmarks import cogram, error_rates, merging, peers, procedures, stacking
from mergebook.lab.results import load_table, read_result
from mergelib.evaluation.cost import Cost


def run(main: Callable[..., None], *arguments: object) -> Result:
    app = typer.Typer()
    app.command()(main)
    return CliRunner().invoke(app, list(map(str, arguments)))


def families() -> tuple[list[str], list[str]]:
    """What is timed: rules, with task arithmetic that calibrations correct, and procedures."""
    known = ml.methods()["family"]
    names = [*known.index[known == "rule"]]
    names += [f"task_arithmetic+{then}" for then in known.index[known == "calibration"]]
    return names, [*known.index[known == "procedure"].drop("cogram")]


def test_stored_costs_are_of_every_method() -> None:
    rules, adapting = families()
    assert sorted(load_table("benchmarks", "rules")["rule"]) == sorted(rules)
    assert sorted(load_table("procedures-speed", "procedures")["method"]) == sorted(adapting)


def test_report(tmp_path: Path) -> None:
    output = tmp_path / "new" / "report.json"
    done = run(merging.main, "--small", "--output", output, "--repeats", 1)
    assert done.exit_code == 0, done.output
    report = read_result(output)
    assert report["provenance"]["versions"]["torch"]
    assert report["inputs"]["experts"] == 3
    assert [row["rule"] for row in report["rules"]] == families()[0]
    for row in report["rules"]:
        assert row["rule"].partition("+")[0] in done.output  # long names are cut
        assert row["experts"] == (2 if "slerp" in row["rule"] else 3)
        assert row["warm_seconds"] > 0
        assert row["warm_ratio"] > 0
    assert {row["spectrum"] for row in report["low_rank"]} == {"1/i", "1/√i"}
    for row in report["low_rank"]:
        assert 0 < row["relative_error"] < 5e-4
        assert row["speedup"] == pytest.approx(row["exact_seconds"] / row["truncated_seconds"])
    assert {row["rule"] for row in report["spectral"]} == {"tsv", "iso_c"}
    for row in report["spectral"]:
        assert 0 < row["relative_error"] < 1e-3
        assert row["speedup"] == pytest.approx(row["plain_seconds"] / row["seconds"])


def test_unknown_rule_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "report.json"
    done = run(merging.main, "--small", "--rules", "average,nonsense", "--output", output)
    assert done.exit_code != 0
    assert "nonsense" in done.output
    assert not output.exists()


def test_cost_of_procedures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls take 9, 5 and 1 s: 20 steps take 4 s after a start of 1 s, so that 500 take 100 s."""
    costs = iter([Cost(9.0, 700), Cost(5.0, 0), Cost(1.0, 0), Cost(9.0, 800), Cost(5.0, 0)])
    monkeypatch.setattr(procedures, "measured", lambda: nullcontext(next(costs)))
    monkeypatch.setattr(procedures, "EXAMPLES", 2)
    calls: list[Any] = []
    monkeypatch.setattr(ml, "adapt", lambda method, **given: calls.append(given.get("steps")))
    row = procedures.measure("adamerging", "vit_small")
    assert row == {"method": "adamerging", "steps": 500, "seconds": 101, "peak_bytes": 700}
    row = procedures.measure("esm", "vit_small")
    assert row == {"method": "esm", "steps": 0, "seconds": 5, "peak_bytes": 800}
    assert calls == [20, 20, 0, None, None]


@pytest.mark.parametrize("method", ["esm", "symerge"])
def test_procedures_accept_the_inputs_of_their_benchmark(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"STEPS": 1, "TASKS": 2, "EXAMPLES": 4}.items():
        monkeypatch.setattr(procedures, name, value)
    assert procedures.measure(method, "vit_small")["method"] == method


def test_cogram_and_its_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of neurons alone, as the loop over weights takes long."""
    monkeypatch.setattr(cogram, "LEVELS", ("neuron",))
    output = tmp_path / "speed.json"
    done = run(cogram.main, "-o", output, "--hidden", 4, "--repeats", 1)
    assert done.exit_code == 0, done.output
    report = read_result(output)
    assert report["provenance"]["versions"]["torch"]
    assert len(report["passes"]) == 4
    for row in report["passes"]:
        assert row["decisions"] == 4 + 20
        assert row["examples"] == (20 if row["data"] == "prototypes" else 200)
        assert row["speedup"] == pytest.approx(row["loop_seconds"] / row["seconds"])


def test_stacked_networks_and_their_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacking, "MODELS", ("mlp", "vit_small"))
    output = tmp_path / "speed.json"
    options = ("--networks", 2, "--batch", 2, "--repeats", 1)
    done = run(stacking.main, "-o", output, *options)
    assert done.exit_code == 0, done.output
    report = read_result(output)
    assert [row["model"] for row in report["gradients"]] == ["mlp", "vit_small"]
    for row in report["gradients"]:
        assert row["speedup"] == pytest.approx(row["loop_seconds"] / row["vmap_seconds"])


def test_error_rates(tmp_path: Path) -> None:
    """At toy size: the new interval errs less often than the one it replaced."""
    output = tmp_path / "errors.json"
    done = run(error_rates.main, "--count", 60, "-o", output)
    assert done.exit_code == 0, done.output
    report = read_result(output)
    assert len(report["intervals"]) == 5 * 6 * 3
    rates: dict[str, list[float]] = {rule: [] for rule in ("crossed model", "Student over seeds")}
    for row in report["intervals"]:
        if row["kind"] == "tasks differ most" and row["rule"] in rates:
            rates[row["rule"]].append(row["error"])
    assert max(rates["crossed model"]) < min(rates["Student over seeds"])
    fractions = {(row["true"], row["verdict"]): row["fraction"] for row in report["verdicts"]}
    assert fractions[6, "holds"] == 1


def test_this_librarys_side_of_the_comparison_with_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "COUNT", 2)
    peers.write_folders(tmp_path, small=True)
    for who, methods in {"floor": ["floor"], "mergelib": [*peers.FILES]}.items():
        for method in methods:
            assert peers.once("files", who, method, tmp_path)["seconds"] > 0
            merged = ml.load_state_dict(tmp_path / f"files {who}")
            assert merged.keys() == ml.load_state_dict(tmp_path / "base").keys()

"""The benchmarks run as `make bench` runs them, at toy size."""

from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

import mergelib as ml
from benchmarks import cogram, error_rates, merging, peers, procedures, stacking
from mergebook.lab.results import read_result


def run(main: Callable[..., None], *arguments: object) -> Result:
    app = typer.Typer()
    app.command()(main)
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_report(tmp_path: Path) -> None:
    output = tmp_path / "new" / "report.json"
    done = run(merging.main, "--small", "--output", output, "--repeats", 1)
    assert done.exit_code == 0, done.output
    report = read_result(output)
    assert report["provenance"]["versions"]["torch"]
    assert report["inputs"]["experts"] == 3
    known = ml.methods()["family"]
    names = [*known.index[known == "rule"]]
    names += [f"task_arithmetic+{then}" for then in known.index[known == "calibration"]]
    assert [row["rule"] for row in report["rules"]] == names
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


@pytest.mark.parametrize("method", ["adamerging", "esm", "frank_wolfe"])
def test_cost_of_procedures(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 500 steps, 16 are taken; the others follow, so that all take longer than these."""
    for name, value in {"STEPS": 16, "TASKS": 2, "EXAMPLES": 20}.items():
        monkeypatch.setattr(procedures, name, value)
    row = procedures.measure(method, "vit_small")
    assert row["steps"] == {"adamerging": 500, "esm": 0, "frank_wolfe": 15}[method]
    assert row["seconds"] > 0
    assert row["peak_bytes"] is None or row["peak_bytes"] > 0


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

"""The benchmark runs as `make bench` runs it, at toy size."""

import subprocess
import sys
from pathlib import Path

import pytest

import mergelib as ml
from mergebook.lab.results import read_result

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", "--small", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_report(tmp_path: Path) -> None:
    output = tmp_path / "new" / "report.json"
    done = run("--output", str(output), "--repeats", "1")
    assert done.returncode == 0, done.stderr
    report = read_result(output)
    assert report["provenance"]["versions"]["torch"]
    assert report["inputs"]["experts"] == 3
    known = ml.methods()
    assert [row["rule"] for row in report["rules"]] == list(known.index[known["family"] == "rule"])
    for row in report["rules"]:
        assert row["rule"] in done.stdout
        assert row["experts"] == (2 if row["rule"] == "slerp" else 3)
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
    done = run("--rules", "average,nonsense", "--output", str(output))
    assert done.returncode != 0
    assert "nonsense" in done.stderr
    assert not output.exists()


def test_cogram_and_its_loop(tmp_path: Path) -> None:
    output = tmp_path / "speed.json"
    command = [sys.executable, "-m", "benchmarks.cogram", "-o", str(output)]
    command += ["--hidden", "4", "--repeats", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = read_result(output)
    assert report["provenance"]["versions"]["torch"]
    assert len(report["passes"]) == 8
    for row in report["passes"]:
        assert row["decisions"] == (4 + 20 if row["level"] == "neuron" else 4 * 33 + 20 * 5)
        assert row["examples"] == (20 if row["data"] == "prototypes" else 200)
        assert row["speedup"] == pytest.approx(row["loop_seconds"] / row["seconds"])


def test_stacked_networks_and_their_loop(tmp_path: Path) -> None:
    output = tmp_path / "speed.json"
    command = [sys.executable, "-m", "benchmarks.stacking", "-o", str(output)]
    command += ["--networks", "2", "--batch", "2", "--repeats", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = read_result(output)
    assert [row["model"] for row in report["gradients"]] == ["mlp", "vit_small", "vit"]
    for row in report["gradients"]:
        assert row["speedup"] == pytest.approx(row["loop_seconds"] / row["vmap_seconds"])


def test_error_rates(tmp_path: Path) -> None:
    """At toy size: the new interval errs less often than the one it replaced."""
    output = tmp_path / "errors.json"
    command = [sys.executable, "-m", "benchmarks.error_rates", "--count", "60", "-o", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = read_result(output)
    assert len(report["intervals"]) == 5 * 6 * 3
    rates: dict[str, list[float]] = {rule: [] for rule in ("crossed model", "Student over seeds")}
    for row in report["intervals"]:
        if row["kind"] == "tasks differ most" and row["rule"] in rates:
            rates[row["rule"]].append(row["error"])
    assert max(rates["crossed model"]) < min(rates["Student over seeds"])
    fractions = {(row["true"], row["verdict"]): row["fraction"] for row in report["verdicts"]}
    assert fractions[6, "holds"] == 1

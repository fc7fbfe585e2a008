"""Result files: rows come back exactly as they were written, and errors name what there is."""

import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergebook.lab import results
from mergebook.lab.results import (
    decode,
    encode,
    load_result,
    load_table,
    read_result,
    write_result,
)

ROOT = Path(__file__).parents[3]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.sampled_from([0.0, -0.0, 1.0, 0.1 + 0.2, 5e-324]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "a", "ü"]),
    st.lists(st.floats(0, 1), max_size=2),
    st.dictionaries(st.sampled_from("xy"), st.booleans(), max_size=2),
)
ROWS = st.lists(st.dictionaries(st.sampled_from("abc"), VALUES), max_size=12)


def same(a: Any, b: Any) -> bool:
    """Equal in value and type, floats in every bit, dictionaries in their order too."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    return bool(a == b)


@given(ROWS)
def test_rows_come_back_exactly(rows: results.Rows) -> None:
    """Their keys in order, values with types, signs of zero, missing keys apart from null."""
    table = json.loads(json.dumps(encode(rows), allow_nan=False))
    assert same(decode(table), rows)


def test_a_table_of_repeated_words_is_short(tmp_path: Path) -> None:
    methods = [f"method {i % 3}" for i in range(300)]
    rows = [{"seed": 0, "method": name, "accuracy": i / 7} for i, name in enumerate(methods)]
    write_result(tmp_path / "a.json", {"provenance": {}, "test": rows})
    by_rows = len(json.dumps({"provenance": {}, "test": rows}))
    assert (tmp_path / "a.json").stat().st_size < by_rows / 2.5
    columns = json.loads((tmp_path / "a.json").read_text())["tables"]["test"]["columns"]
    assert columns["seed"] == {"values": [0], "codes": None}
    assert columns["method"]["values"] == ["method 0", "method 1", "method 2"]
    assert columns["accuracy"] == [row["accuracy"] for row in rows]


def test_rows_that_differ_in_their_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: results.Rows = [
        {"method": "ties", "scale": 1, "accuracy": 0.5},
        {"method": "dare", "accuracy": 0.25, "drop_rate": None},
        {"accuracy": 0.125, "method": "ties", "scale": 2},
    ]
    record = {"provenance": {"seeds": [0]}, "test": rows, "empty": []}
    write_result(tmp_path / "a.json", record)
    assert same(read_result(tmp_path / "a.json"), record)
    monkeypatch.setattr(results, "load_result", lambda _: read_result(tmp_path / "a.json"))
    table = load_table("a")
    pd.testing.assert_frame_equal(table, pd.DataFrame(rows), check_exact=True)
    assert list(table) == ["method", "scale", "accuracy", "drop_rate"]
    assert table["scale"].isna().tolist() == [False, True, False]
    with pytest.raises(ValueError, match="result 'a' has no table 'tset'; it has: test, empty"):
        load_table("a", "tset")
    with pytest.raises(ValueError, match="has no table 'provenance'"):
        load_table("a", "provenance")


def test_records_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "results" / "digits2.json"
    record = {"network": [32, 64], "test": [{"accuracy": 0.5}]}
    write_result(path, record)
    assert read_result(path) == record
    for part in ([{"accuracy": float("nan")}], float("inf")):
        with pytest.raises(ValueError, match="not JSON compliant"):
            write_result(path, {"test": part})
    with pytest.raises(ValueError, match="none may be named 'tables'"):
        write_result(path, {"tables": []})
    with pytest.raises(OSError, match=str(path)):
        write_result(path / "x.json", {})
    assert read_result(path) == record
    assert [file.name for file in path.parent.iterdir()] == ["digits2.json"]


def test_shipped_results_can_be_read() -> None:
    record = load_result("vision8-baselines")
    assert {"provenance", "test", "validation", "chosen"} <= set(record)
    there = r"no result 'vision9'; there are: .*vision8-baselines"
    with pytest.raises(results.MissingResult, match=there):
        load_result("vision9")
    assert load_table("frank_wolfe-memory", "peaks")["variant"].nunique() == 2


def test_every_shipped_result_is_read_as_a_study_wrote_it() -> None:
    """It has tables, by column, and provenance."""
    for file in (ROOT / "results").glob("*.json"):
        record = read_result(file)
        versions = record["provenance"]["versions"]  # once, or by seed where they differ
        for known in [versions] if "torch" in versions else versions.values():
            assert known["torch"], file.name
        assert any(isinstance(part, list) for part in record.values()), file.name


def test_a_result_without_tables_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "rows.json").write_text('{"provenance": {}, "test": [{"a": 1}]}')
    monkeypatch.setattr("importlib.resources.files", lambda package: tmp_path)
    with pytest.raises(ValueError, match="no tables"):
        load_table("rows")


def test_shipped_results_stay_small() -> None:
    """They are a part of the wheel, which compresses them and a Colab notebook downloads."""
    files = (ROOT / "results").glob("*.json")
    assert sum(len(zlib.compress(file.read_bytes())) for file in files) < 4.5e6


def test_a_record_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    flush, rename = os.fsync, os.replace

    def watched_flush(descriptor: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if Path(name).is_file():
            assert json.loads(Path(name).read_text())["tables"]["test"]["rows"] == 1
            seen.append("flushed")
        flush(descriptor)

    def watched_rename(*names: Any) -> None:
        seen.append("renamed")
        rename(*names)

    monkeypatch.setattr(os, "fsync", watched_flush)
    monkeypatch.setattr(os, "replace", watched_rename)
    write_result(tmp_path / "a.json", {"test": [{"a": 1}]})
    assert seen[0] == "flushed"
    assert (tmp_path / "a.json").is_file()


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"tables": {"test": {"columns": {}}}}')
    with pytest.raises(ValueError, match=r"a\.json is damaged, or no result: no 'rows'"):
        read_result(file)

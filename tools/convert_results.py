"""Convert result files of rows to files of columns, and prove that nothing changed.

A file is replaced only after its new form was read back and every part compared with the old:
rows with their keys in order, values with their types, floats bit for bit, and the DataFrames that
`load_table` gives (columns in order, dtypes, missing values). Files whose tables are by column
already, and those that are no study's, are left as they are.

    python tools/convert_results.py [FOLDER]
"""

import json
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd

from mergelib.records.results import read_result, write_result

ROOT = Path(__file__).resolve().parents[1]


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


def check(name: str, old: dict[str, Any], new: dict[str, Any]) -> int:
    """How many values of tables were compared.

    Raises:
        ValueError: naming the first part that is not the same.
    """
    if set(old) != set(new):
        raise ValueError(f"{name}: parts {sorted(old)} became {sorted(new)}")
    count = 0
    for part, value in old.items():
        if not same(value, new[part]):
            raise ValueError(f"{name}: {part} is not the same")
        if part != "provenance":
            pd.testing.assert_frame_equal(
                pd.DataFrame(value), pd.DataFrame(new[part]), check_exact=True
            )
            count += sum(map(len, value))
    return count


def convert(path: Path) -> str:
    """Replace a file by its new form; what was done, in words."""
    old = json.loads(path.read_text())
    if "tables" in old:
        return "by columns already"
    if "study" not in old["provenance"]:
        return "left: no study's"
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / path.name
        write_result(draft, old)
        count = check(path.name, old, read_result(draft))
        before, after = path.stat().st_size, draft.stat().st_size
        path.write_bytes(draft.read_bytes())
    return f"{count} values are the same; {before / 1e6:.2f} MB became {after / 1e6:.2f} MB"


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "results"
    for path in sorted(folder.glob("*.json")):
        print(f"{path.stem}: {convert(path)}")
    total = sum(path.stat().st_size for path in folder.glob("*.json"))
    print(f"{total / 1e6:.2f} MB in all")


if __name__ == "__main__":
    main()

"""The path to WUDI's minimum begins at the sum, and ends where the closed form is."""

from mergebook.cart.measure.since import descent
from mergebook.lab.comparison import cut, judged, merge_zoo
from mergebook.suites.types import Zoo


def test_descent_goes_from_the_sum_to_the_closed_form(tiny_zoo: Zoo) -> None:
    counts = (1, 20, 6000)
    tables = descent(tiny_zoo, rates=(2e-3,), steps=counts, ridges=(0.0, 10.0), scales=(1.0, 0.3))
    gaps = {(row["method"], row["value"], row["steps"]): row["gap"] for row in tables["path"]}
    falling = [gaps["adam", 0.0, 0], *(gaps["adam", 2e-3, count] for count in counts)]
    assert falling == sorted(falling, reverse=True)
    assert falling[0] == 1
    assert falling[-1] < 0.01
    assert gaps["closed", 0.0, 0] == 0 < gaps["closed", 10.0, 0]
    lengths = [row["length"] for row in tables["path"]]
    assert lengths[0] == 1
    assert lengths[2] < 0.5, "a strong ridge"


def test_descent_judges_what_merge_makes(tiny_zoo: Zoo) -> None:
    zoo = cut(tiny_zoo, 60)
    tables = descent(zoo, rates=(), steps=(1,), ridges=(0.1,), scales=(0.7, 0.3), pictures=60)
    rows = [row for row in tables["test"] if row["method"] == "closed"]
    assert [row["scale"] for row in rows if not row["chosen"]] == [1.0, 1.0]
    for row in rows:
        state = merge_zoo("wudi", zoo, ridge=0.1, scale=row["scale"])
        expected = {own["task"]: own["accuracy"] for own in judged(zoo, "closed", state)}
        assert row["accuracy"] == expected[row["task"]]

"""Records of several seeds."""

from mergebook.cart.measure.experiments import baselines
from mergebook.lab.measuring import Measurement, measure
from mergebook.suites.training import Recipe


def test_a_record_has_the_rows_of_every_seed(tiny: str) -> None:
    both, first, second = (
        measure(
            Measurement(
                baselines,
                "digits2",
                seeds,
                settings={"grids": {"average": {}}},
                model=tiny,
                recipe=Recipe(epochs=1),
                options={"profile": "smoke"},
            )
        )
        for seeds in ([0, 1], [0], [1])
    )
    assert both["test"] == [*first["test"], *second["test"]]
    for name in ("sources", "zoo"):
        parts = first["provenance"][name] | second["provenance"][name]
        assert both["provenance"][name] == parts
    assert both["provenance"]["seeds"] == [0, 1]

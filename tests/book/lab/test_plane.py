"""The plane through three models keeps distances, and gives models back."""

import pytest
import torch

from mergebook.lab.plane import Plane
from mergelib.statedict import flatten


def states() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        {"w": torch.randn(3, 4, generator=generator), "b": torch.randn(4, generator=generator)}
        for _ in range(4)
    ]


def test_coordinates_keep_all_distances() -> None:
    corners = states()[:3]
    plane = Plane.through(corners)
    for one in corners:
        for other in corners:
            apart = torch.dist(torch.tensor(plane.place(one)), torch.tensor(plane.place(other)))
            torch.testing.assert_close(apart, (flatten(one) - flatten(other)).norm())
    assert plane.place(corners[1]) == pytest.approx([0, 0], abs=1e-6)
    assert plane.place(corners[2])[1] == pytest.approx(0, abs=1e-5)


def test_a_model_of_the_plane_is_where_it_was_asked_for() -> None:
    plane = Plane.through(states()[:3])
    assert plane.place(plane.model(0.7, -1.3)) == pytest.approx([0.7, -1.3], abs=1e-5)


def test_the_foot_of_another_model_is_the_nearest_point() -> None:
    *corners, stranger = states()
    plane = Plane.through(corners)
    x, y = plane.place(stranger)
    nearest = (flatten(plane.model(x, y)) - flatten(stranger)).norm()
    for shift in ((0.1, 0), (-0.1, 0), (0, 0.1), (0, -0.1)):
        moved = plane.model(x + shift[0], y + shift[1])
        assert (flatten(moved) - flatten(stranger)).norm() > nearest


def test_three_models_that_are_no_triangle_are_refused() -> None:
    one, other, *_ = states()
    middle = {key: (one[key] + other[key]) / 2 for key in one}
    with pytest.raises(ValueError, match="on one line"):
        Plane.through([middle, one, other])
    with pytest.raises(ValueError, match="expected 3"):
        Plane.through([one, other])


def test_three_models_by_hand_and_the_plane_of_the_longest_ways() -> None:
    corner, along, third = ({"w": torch.tensor(w)} for w in ([1.0, 1, 0], [4.0, 1, 0], [3.0, 1, 2]))
    plane = Plane.through([third, corner, along])
    assert plane.place(along) == pytest.approx([3, 0])
    assert plane.place(third) == pytest.approx([2, 2])
    ways = torch.tensor([[3.0, 0, 0], [0, 0, 2.0], [0, 0.1, 0]])
    found = Plane.principal({"w": torch.zeros(3)}, ways).axes
    assert found.abs().round(decimals=3).tolist() == [[1, 0, 0], [0, 0, 1]]

import pandas as pd
import pytest
import torch

from mergebook.sail.distances import gaussian_variation, total_variation
from mergebook.sail.measure import risk
from mergebook.sail.read import mixtures
from mergebook.sail.theory import empirical_rademacher, risk_bound
from mergelib.sail.proximal import proximal_weights

SHARES = (0.0, 0.25, 0.5, 1.0)


def test_a_known_mixture_of_histograms_is_exact() -> None:
    first, second = torch.tensor([5.0, 1, 0, 4]), torch.tensor([1.0, 3, 6, 0])
    samples = torch.stack([0.3 * first + 0.7 * second, first, second])
    table = total_variation(samples[:, None], samples[None]).square()
    weight = proximal_weights(table[0, 1:], table[1:, 1:], "affine").weights[0]
    assert float(weight) == pytest.approx(0.3)


def test_perceptrons_trained_together_are_those_trained_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    data = mixtures._tasks(generator)
    nets = mixtures._initial(3, generator)
    shares = torch.tensor([1.0, 0.3, 0.0])
    together = mixtures._train(nets, shares, data, 5)
    for i in range(3):
        own = {key: part[i : i + 1] for key, part in nets.items()}
        alone = mixtures._train(own, shares[i : i + 1], data, 5)
        for key in nets:
            assert torch.allclose(alone[key][0], together[key][i], atol=1e-5)
    before, after = (mixtures._losses(state, shares, data) for state in (nets, together))
    assert (after < before).all()


def test_sources_on_their_own_data_are_their_own_optimum() -> None:
    """With one start for all, θ*(1) is θ_1; with other starts it is another network."""
    shared, own, matched = (
        mixtures.perceptron_shares((0.0, 1.0), 0, start=start, steps=5, retrained=1)
        for start in mixtures.STARTS
    )
    assert shared["nearest_source"].to_numpy() == pytest.approx([0, 0], abs=1e-9)
    assert shared["parameters"].to_numpy() == pytest.approx([0, 1], abs=1e-6)
    assert own["nearest_source"].min() > 1
    assert (matched["nearest_source"] < own["nearest_source"]).all()
    with pytest.raises(ValueError, match="start is 'mine', expected 'shared' or 'own'"):
        mixtures.perceptron_shares((0.0, 1.0), 0, start="mine")


def test_matching_finds_the_order_of_hidden_units() -> None:
    generator = torch.Generator().manual_seed(0)
    net = mixtures._pick(mixtures._initial(1, generator), 0)
    order = torch.randperm(mixtures.HIDDEN, generator=generator)
    shuffled = {"0.weight": net["0.weight"][order], "0.bias": net["0.bias"][order]}
    shuffled |= {"2.weight": net["2.weight"][:, order], "2.bias": net["2.bias"]}
    matched = mixtures._matched(net, shuffled)
    assert all(torch.equal(matched[key], part) for key, part in net.items())


def test_the_clipped_risk_by_sampling() -> None:
    margins = 0.4 + 1.7 * torch.randn(400_000, generator=torch.Generator().manual_seed(0))
    exact = float(risk.clipped_risk(torch.tensor(0.4), 1.7))
    assert float((1 - margins).clamp(0, 1).mean()) == pytest.approx(exact, abs=0.003)


def test_theorem_4_covers_and_only_repaired_says_something() -> None:
    """Two hundred draws with a known total variation, and all 64 directions of w."""
    table = pd.DataFrame(risk.risk(0)["bounds"])
    printed, repaired = (rows.set_index("examples") for _, rows in table.groupby("form"))
    assert (repaired["holds"] >= 0.95).all()
    assert (printed["bound"] > 2).all()
    assert repaired["bound"].iloc[-1] < 1
    assert (repaired["truth"] < repaired["bound"]).all()


def test_without_its_distance_term_the_bound_fails_for_a_far_target() -> None:
    """The draws can tell a bound from none: a target where the classes have changed sides."""
    generator = torch.Generator().manual_seed(0)
    signed = torch.randn(3000, 2, generator=generator) + torch.tensor([1.0, 0.0])
    way = torch.tensor([2.0, 0.0])
    empirical = float((1 - signed @ way).clamp(0, 1).mean())
    rich = empirical_rademacher(signed, 2.0)
    truth = float(risk.clipped_risk(torch.tensor(-2.0), 2.0))
    assert truth > risk_bound(empirical, 0.0, rich, 3000)
    far = float(gaussian_variation(2.0))
    assert truth < risk_bound(empirical, far, rich, 3000)

"""TSV and Iso against the plain way, with full decompositions in float64."""

import pytest
import torch
from torch import Tensor

import mergelib as ml
from mergelib.numerics.linalg import polar_factor
from mergelib.rules.arithmetic import average
from mergelib.rules.spectral import iso_c, iso_cts, tsv


def spectrum_matrix(rows: int, columns: int, decay: float, seed: int) -> Tensor:
    """A random matrix whose singular values decay like i^(-decay)."""
    generator = torch.Generator().manual_seed(seed)
    u, _ = torch.linalg.qr(torch.randn(rows, min(rows, columns), generator=generator))
    v, _ = torch.linalg.qr(torch.randn(columns, min(rows, columns), generator=generator))
    values = torch.arange(1, min(rows, columns) + 1).float().pow(-decay)
    matrix: Tensor = (u * values) @ v.T
    return matrix


def family(rows: int, columns: int, count: int, decay: float) -> tuple[list[Tensor], Tensor]:
    base = torch.randn(rows, columns, generator=torch.Generator().manual_seed(99))
    return [base + spectrum_matrix(rows, columns, decay, t) for t in range(count)], base


def plain_polar(matrix: Tensor) -> Tensor:
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    factor: Tensor = u @ vh
    return factor


def plain_tsv(experts: list[Tensor], base: Tensor, rank: int = 0) -> Tensor:
    rank = rank or max(1, min(base.shape) // len(experts))
    parts = [torch.linalg.svd((e - base).double(), full_matrices=False) for e in experts]
    u = torch.cat([p[0][:, :rank] for p in parts], 1)
    s = torch.cat([p[1][:rank] for p in parts])
    vh = torch.cat([p[2][:rank] for p in parts])
    return plain_polar(u) @ torch.diag(s) @ plain_polar(vh)


def plain_iso_c(experts: list[Tensor], base: Tensor) -> Tensor:
    u, s, vh = torch.linalg.svd(sum((e - base).double() for e in experts), full_matrices=False)
    flat: Tensor = s.mean() * u @ vh
    return flat


def plain_iso_cts(experts: list[Tensor], base: Tensor, fraction: float) -> Tensor:
    full = min(base.shape)
    own = round((full - int(fraction * full)) / len(experts))
    common = full - own * len(experts)
    deltas = [(e - base).double() for e in experts]
    u, s, vh = (x for x in torch.linalg.svd(sum(deltas), full_matrices=False))
    us, ss, vs = [u[:, :common]], [s[:common]], [vh[:common]]
    for delta in deltas:
        rest = delta - us[0] @ us[0].T @ delta
        u, s, vh = torch.linalg.svd(rest, full_matrices=False)
        us.append(u[:, :own])
        ss.append(s[:own])
        vs.append(vh[:own])
    return torch.cat(ss).mean() * plain_polar(torch.cat(us, 1)) @ plain_polar(torch.cat(vs))


def gap(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("decay", [0.5, 1.0])
@pytest.mark.parametrize("shape", [(96, 96), (160, 64), (64, 160)])
@pytest.mark.parametrize("count", [1, 4])
def test_against_full_decompositions(shape: tuple[int, int], count: int, decay: float) -> None:
    experts, base = family(*shape, count, decay)
    zero = torch.zeros_like(base)
    deltas = [e - base for e in experts]
    assert gap(tsv(deltas, zero), plain_tsv(deltas, zero)) < 1e-3
    assert gap(iso_c(deltas, zero), plain_iso_c(deltas, zero)) < 1e-3
    assert gap(iso_cts(deltas, zero), plain_iso_cts(deltas, zero, 0.8)) < 1e-3
    torch.testing.assert_close(
        tsv(experts, base, scale=0.5), base + 0.5 * tsv(deltas, zero), atol=1e-4, rtol=0
    )


def test_tsv_with_a_rank_for_each_layer() -> None:
    """Ranks by pattern, also more directions than there are, and a layer that is averaged."""
    experts, base = family(32, 20, 4, 0.5)
    keys = ("layer.0.attn.weight", "layer.0.mlp.weight", "layer.1.mlp.weight", "layer.2.mlp.weight")
    origin, *models = ({key: each.clone() for key in keys} for each in (base, *experts))
    ratios = {"*attn*": 0.1, "*.1.*": 0.29, "*.2.*": None, "*": 0.5}
    merged = ml.merge(
        "tsv",
        models,
        pretrained=origin,
        rank_ratio=ratios,
        is_matrix=lambda key, tensor: "mlp" in key and tensor.dim() == 2,
    )
    deltas, zero = [e - base for e in experts], torch.zeros_like(base)
    torch.testing.assert_close(merged[keys[0]], average(experts))
    for key, rank in zip(keys[1:], (10, 5, 5), strict=True):
        assert gap(merged[key] - base, plain_tsv(deltas, zero, rank)) < 2e-3
    with pytest.raises(ValueError, match="rank_ratio is 0, expected above 0 and at most 1"):
        ml.merge("tsv", models, pretrained=origin, rank_ratio=0)


@pytest.mark.parametrize("count", [1, 2, 7, 12, 49, 50])
def test_the_default_rank_is_the_whole_part_of_the_share(count: int) -> None:
    experts, base = family(49, 53, count, 0.1)
    merged = ml.merge("tsv", [{"w": each} for each in experts], pretrained={"w": base})["w"]
    ratio = min(1.0, (max(1, 49 // count) + 1e-4) / 49)
    own = ml.merge("tsv", [{"w": e} for e in experts], pretrained={"w": base}, rank_ratio=ratio)
    assert torch.equal(merged, own["w"])


def test_tsv_of_orthogonal_tasks_is_their_sum() -> None:
    """Tasks of few directions that nobody shares are kept as they are."""
    basis = torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(0)))[0]
    deltas = [basis[:, i : i + 2] @ basis[i : i + 2] for i in (0, 4, 8)]  # rank 2 of r/T = 4
    torch.testing.assert_close(tsv(deltas, torch.zeros(12, 12)), sum(deltas), atol=1e-5, rtol=0)


def test_the_spectrum_of_iso_is_flat() -> None:
    experts, base = family(30, 20, 3, 1.0)
    total = torch.linalg.svdvals(sum(experts) - 3 * base)
    flat = torch.linalg.svdvals(iso_c(experts, base) - base)
    torch.testing.assert_close(flat, total.mean().expand(20), rtol=1e-4, atol=1e-5)
    assert torch.equal(iso_cts(experts, base, common_fraction=1.0), iso_c(experts, base))


def test_zero_directions_stay_zero() -> None:
    base = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    for rule in (tsv, iso_c, iso_cts):
        torch.testing.assert_close(rule([base, base.clone()], base), base)
    delta = torch.zeros(8, 6)
    delta[0, 0], delta[1, 1] = 3.0, 1.0  # two directions of six: mean (3 + 1) / 6
    expected = torch.zeros(8, 6)
    expected[0, 0] = expected[1, 1] = 4 / 6
    torch.testing.assert_close(iso_c([delta], torch.zeros(8, 6)), expected)


def test_more_experts_than_directions() -> None:
    experts, base = family(5, 40, 8, 1.0)
    for rule in (tsv, iso_c, iso_cts):
        assert rule(experts, base).isfinite().all()


def test_fraction_out_of_range() -> None:
    experts, base = family(5, 6, 2, 1.0)
    with pytest.raises(ValueError, match=r"common_fraction is 1\.5"):
        ml.merge(
            "iso_cts", [{"w": e} for e in experts], pretrained={"w": base}, common_fraction=1.5
        )


def test_what_is_no_matrix_is_averaged() -> None:
    base = {"weight": torch.zeros(4, 5), "bias": torch.zeros(4)}
    experts = [{k: v + i for k, v in base.items()} for i in (1.0, 3.0)]
    for name in ("tsv", "iso_c", "iso_cts"):
        merged = ml.merge(name, experts, pretrained=base)
        assert torch.equal(merged["bias"], average([e["bias"] for e in experts]))


@pytest.mark.parametrize("shape", [(50, 20), (20, 50), (30, 30)])
def test_polar_factor(shape: tuple[int, int]) -> None:
    matrix = spectrum_matrix(*shape, 2.0, 3)
    factor = polar_factor(matrix)
    assert gap(factor, plain_polar(matrix.double())) < 1e-3
    tall = factor if shape[0] >= shape[1] else factor.T
    torch.testing.assert_close(tall.T @ tall, torch.eye(min(shape)), atol=1e-3, rtol=0)
    assert torch.equal(polar_factor(torch.zeros(shape)), torch.zeros(shape))

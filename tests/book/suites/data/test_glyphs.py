"""Rendered tasks: deterministic, balanced, no look-alikes, unseen faces only in the test split."""

import dataclasses
from collections.abc import Iterable, Sequence

import pytest
import torch
from torch import Generator, Tensor

from mergebook.suites.data import glyphs, media

SIZES = (40, 10, 30)
Splits = Sequence[tuple[Tensor, Tensor]]


def distinct(characters: str) -> glyphs.GlyphSet:
    return glyphs.glyph_set(glyphs.Script(characters, media.plain))


def same(first: Splits, second: Splits) -> bool:
    pairs = zip((t for s in first for t in s), (t for s in second for t in s), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_the_same_seed_gives_the_same_pictures() -> None:
    names, splits = glyphs.render_task("chess", SIZES, seed=3)
    again, repeated = glyphs.render_task("chess", SIZES, seed=3)
    assert names == again
    assert same(splits, repeated)
    other = glyphs.render_task("chess", SIZES, seed=4)[1]
    assert not torch.equal(splits[0][0], other[0][0])
    assert not torch.equal(splits[0][0][:10], splits[2][0][:10])


@pytest.mark.parametrize("name", list(glyphs.SCRIPTS))
def test_every_script_renders_its_classes(name: str) -> None:
    script = glyphs.SCRIPTS[name]
    names, splits = glyphs.render_task(name, SIZES, seed=0)
    assert 8 <= len(names) <= 24
    assert set(names) <= set(script.characters)
    for (images, labels), size in zip(splits, SIZES, strict=True):
        assert images.shape == (size, 3, 32, 32)
        assert images.dtype == torch.uint8
        assert labels.dtype == torch.int64
        counts = labels.bincount(minlength=len(names))
        assert int(counts.max() - counts.min()) <= 1
        spread = images.float().std((1, 2, 3))
        assert float(spread.min()) > 2, "a blank picture"


def test_a_medium_is_used_once() -> None:
    used = [script.medium for script in glyphs.SCRIPTS.values()]
    assert len(set(used)) == len(used) == 20
    assert not set(used) & set(media.PLAIN_MEDIA)


def test_look_alikes_are_dropped() -> None:
    assert distinct("AΑАB").class_names == ("A", "B")  # Latin, Greek and Cyrillic A


def test_a_face_is_held_out_where_three_have_the_glyph() -> None:
    held = distinct("Ж")
    assert len(held.testing[0]) >= 3
    assert held.testing[0].tolist()[:-1] == held.training[0].tolist()
    both = distinct("ⴱ")  # Tifinagh stands in two faces only
    assert len(both.testing[0]) == 2
    assert torch.equal(both.testing[0], both.training[0])


def flat(mask: Tensor, generator: Generator) -> Tensor:
    """A medium that shows the coverage itself."""
    return mask.expand(-1, 3, -1, -1)


def test_held_out_faces_never_reach_training(monkeypatch: pytest.MonkeyPatch) -> None:
    white, black = torch.ones(1, 1, 96, 96), torch.zeros(1, 1, 96, 96)
    rows = torch.arange(2)
    two = glyphs.GlyphSet(("x",), torch.cat([white, black]), (rows[:1],), (rows,))
    monkeypatch.setattr(glyphs, "_sample", lambda masks, points: masks[..., 16:80, 16:80])
    labels = torch.zeros(64, dtype=torch.int64)
    for jitter in (glyphs.CALM, glyphs.WILD):
        for held_out, shades in ((False, {255}), (True, {0, 255})):
            generator = Generator().manual_seed(0)
            seen = glyphs.render(two, labels, flat, jitter, generator, held_out=held_out)
            assert set(seen.unique().tolist()) == shades


def test_only_test_splits_allow_held_out_faces(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed: list[bool] = []

    def record(
        glyph_set: glyphs.GlyphSet,
        labels: Tensor,
        medium: media.Medium,
        jitter: glyphs.Jitter,
        generator: Generator,
        *,
        held_out: bool,
    ) -> Tensor:
        allowed.append(held_out)
        return torch.zeros(len(labels), 3, 32, 32, dtype=torch.uint8)

    monkeypatch.setattr(glyphs, "render", record)
    glyphs.render_task("chess", SIZES, seed=0)
    assert allowed == [False, False, True]
    allowed.clear()
    glyphs.render_pretraining(1, 1, seed=0)
    assert allowed == [False] * len(media.PLAIN_MEDIA) + [True] * len(media.PLAIN_MEDIA)


def test_neighbours_are_added_beside_the_glyph() -> None:
    drawn = distinct("ЖШЮ")
    labels = torch.zeros(50, dtype=torch.int64)
    still = glyphs.Jitter(angle=0, zoom=(1.4, 1.4), shear=0, shift=0)
    crowded = dataclasses.replace(still, crowd=1.0)
    alone, beside = (
        glyphs.render(drawn, labels, flat, j, Generator().manual_seed(0), held_out=False).int()
        for j in (still, crowded)
    )
    added = (beside - alone).sum((0, 1, 2))
    assert bool((beside >= alone).all())
    assert int(added[8:24].sum()) == 0
    assert int(added[:5].sum()) > 0
    assert int(added[-5:].sum()) > 0


def test_bending_moves_points_smoothly() -> None:
    straight = dataclasses.replace(glyphs.WILD, warp=0.0)
    before, after = (
        glyphs._places(200, j, Generator().manual_seed(0)) for j in (straight, glyphs.WILD)
    )
    moved = after - before
    assert 0.3 < float(moved.std()) / glyphs.WILD.warp < 1.2
    assert float(moved.diff(dim=1).abs().max()) < glyphs.WILD.warp


def signatures(drawn: glyphs.GlyphSet, rows: Iterable[int | Tensor]) -> Tensor:
    return torch.stack([glyphs._signature(drawn.masks[k, 0]) for k in rows])


def test_pretraining_glyphs_do_not_look_like_those_of_a_task() -> None:
    pretraining = glyphs.glyph_set(glyphs.PRETRAINING)
    firsts = signatures(pretraining, [rows[0] for rows in pretraining.training])
    for script in glyphs.SCRIPTS.values():
        assert not set(script.characters) & set(glyphs.PRETRAINING.characters)
        task = glyphs.glyph_set(script)
        likeness = firsts @ signatures(task, range(len(task.masks))).T
        assert float(likeness.max()) < 0.97


def test_pretraining_set_is_balanced() -> None:
    names, (train, test) = glyphs.render_pretraining(4, 1, seed=0)
    assert 150 <= len(names) <= 300
    assert set(train[1].bincount().tolist()) == {4}
    assert set(test[1].bincount().tolist()) == {1}
    assert len(train[0]) == 4 * len(names)


def test_unknown_script_lists_the_known() -> None:
    with pytest.raises(ValueError, match="unknown script 'klingon'; known: greek"):
        glyphs.render_task("klingon", SIZES, seed=0)


def test_characters_without_a_face_are_refused() -> None:
    with pytest.raises(ValueError, match="no font face"):
        distinct("漢")


def test_blur_keeps_constants_and_mass() -> None:
    flat = torch.full((1, 2, 32, 32), 0.7)
    torch.testing.assert_close(media.blur(flat, 1.3), flat)
    point = torch.zeros(1, 1, 33, 33)
    point[..., 16, 16] = 1
    spread = media.blur(point, 1.5)
    torch.testing.assert_close(spread.sum(), torch.tensor(1.0))
    offsets = torch.arange(33) - 16.0
    variance = (spread[0, 0].sum(0) * offsets**2).sum()
    torch.testing.assert_close(variance, torch.tensor(1.5**2), rtol=0.15, atol=0)

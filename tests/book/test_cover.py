"""The cover of the book is what its script draws."""

import xml.etree.ElementTree as ElementTree

from cover import CARD_SIZE, MERGED, PLACES, PRETRAINED, TARGET, card, cover
from PIL import Image

SVG = "{http://www.w3.org/2000/svg}"


def test_the_committed_cover_is_the_one_drawn() -> None:
    assert TARGET.read_text(encoding="utf-8") == cover(), "run tools/cover.py"


def test_the_card_has_the_size_of_a_preview() -> None:
    """Its letters depend on the machine's fonts, so its bytes are not compared."""
    assert ElementTree.fromstring(card()).get("width") == str(CARD_SIZE[0])
    with Image.open(TARGET.with_suffix(".png")) as image:
        assert image.size == CARD_SIZE


def test_every_picture_is_answered_by_its_expert_and_by_the_merged_model() -> None:
    drawing = ElementTree.fromstring(cover())
    ticks = [circle for circle in drawing.iter(f"{SVG}circle") if circle.get("r") == "14"]
    assert len(ticks) == 2 * len(PLACES)


def test_the_merged_model_is_where_the_formula_puts_it() -> None:
    scale = 1 / len(PLACES)
    for axis in (0, 1):
        task_vectors = [place[axis] - PRETRAINED[axis] for place in PLACES.values()]
        assert abs(MERGED[axis] - (PRETRAINED[axis] + scale * sum(task_vectors))) < 1e-9

"""Zoos and shipped backbones as the library sees them: short in words, and related."""

import mergelib as ml
from mergebook.suites.backbones import shipped_backbone
from mergebook.suites.types import Zoo
from tests.library.messages.test_brief import check_short
from tests.library.messages.test_warned import heard, near


def test_a_zoo_is_short(tiny_zoo: Zoo) -> None:
    check_short(tiny_zoo, tiny_zoo.suite, *tiny_zoo.suite.tasks.values())


def test_experts_of_a_zoo_are_related(tiny_zoo: Zoo) -> None:
    assert not heard(lambda: ml.merge("average", tiny_zoo.experts))
    assert not heard(lambda: ml.merge("ties", tiny_zoo.experts, pretrained=tiny_zoo.pretrained))


def test_the_shipped_backbone_has_kin() -> None:
    base = shipped_backbone("vit")
    assert base is not None
    assert not heard(lambda: ml.merge("average", [base, near(base, 1.0, 0)]))

"""Parts of models: what is merged, what is the reference's, and what is refused."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from mergelib.parts import Missing, Parts, select

State = dict[str, Tensor]


def header(**shapes: tuple[int, ...]) -> State:
    """Shapes alone: what a checkpoint's header tells."""
    return {
        key.replace("_", "."): torch.empty(shape, device="meta") for key, shape in shapes.items()
    }


BASE = header(bert_a=(3, 3), bert_b=(3,), head=(2, 3))
TWO = header(bert_a=(3, 3), bert_b=(3,), head=(2, 3))
THREE = header(bert_a=(3, 3), bert_b=(3,), head=(3, 3))
BODY = {"bert.a", "bert.b"}


def test_everything_by_default() -> None:
    selection = select({"two": TWO, "more": TWO}, BASE)
    assert selection.keys == ("bert.a", "bert.b", "head")
    assert selection.merged == {"bert.a", "bert.b", "head"}


@pytest.mark.parametrize(
    ("include", "exclude", "merged"),
    [
        ("bert.*", None, BODY),
        (["bert.a", "*.b"], None, BODY),
        (None, "head", BODY),
        ("bert.*", "*.b", {"bert.a"}),
        (None, ["*.a", "head"], {"bert.b"}),
    ],
)
def test_patterns(include: Any, exclude: Any, merged: set[str]) -> None:
    """What is not selected may differ, and is the reference's."""
    for pretrained in (BASE, None):
        selection = select({"two": TWO, "three": THREE}, pretrained, Parts(include, exclude))
        assert selection.keys == tuple(BASE)
        assert selection.merged == merged


@pytest.mark.parametrize("missing", ["base", "skip"])
def test_missing(missing: Missing) -> None:
    """Another shape, or no such key."""
    without = {key: value for key, value in TWO.items() if key != "bert.b"}
    selection = select({"three": THREE, "without": without}, BASE, Parts(missing=missing))
    assert selection.merged == {"bert.a"}
    assert selection.keys == (tuple(BASE) if missing == "base" else ("bert.a",))


def test_missing_says_nothing_of_what_is_not_selected() -> None:
    parts = Parts(exclude="bert.b", missing="skip")
    selection = select({"two": TWO, "three": THREE}, BASE, parts)
    assert selection.keys == ("bert.a", "bert.b")
    assert selection.merged == {"bert.a"}


def test_keys_that_only_experts_have() -> None:
    body = header(bert_a=(3, 3), bert_b=(3,))
    with pytest.raises(ValueError, match="two has the extra key 'head' compared with pretrained"):
        select({"two": TWO, "again": TWO}, body)
    with pytest.raises(ValueError, match="two has the extra key 'head', which missing='base'"):
        select({"two": TWO}, body, Parts(missing="base"))
    for parts in (Parts(missing="skip"), Parts(exclude="head"), Parts("bert.*", missing="base")):
        selection = select({"two": TWO, "three": THREE}, body, parts)
        assert selection.keys == ("bert.a", "bert.b")
        assert selection.merged == BODY


def test_without_a_pretrained_model_the_first_expert_is_the_reference() -> None:
    more = TWO | header(extra=(1,))
    assert select({"two": TWO, "more": more}, None, Parts(missing="skip")).keys == tuple(TWO)
    with pytest.raises(ValueError, match="missing='base' takes tensors of the pretrained model"):
        select({"two": TWO, "more": more}, None, Parts(missing="base"))


def test_dtypes_may_differ_while_they_are_floating() -> None:
    """Integers and floats never mix, whatever is said about missing keys."""
    half = {key: value.half() for key, value in TWO.items()}
    assert select({"half": half, "two": TWO}, BASE).merged == set(BASE)
    for missing in ("error", "base", "skip"):
        for dtype in (torch.int64, torch.float8_e4m3fn):
            odd = {**TWO, "bert.a": TWO["bert.a"].to(dtype)}
            message = rf"odd\['bert.a'\] has dtype {dtype}, expected torch.float32 as in pretrained"
            with pytest.raises(ValueError, match=message):
                select({"two": TWO, "odd": odd}, BASE, Parts(missing=missing))


def test_tied_names_share_one_fate() -> None:
    tied = {"bert.out": "bert.in"}
    base = header(bert_in=(4, 2), bert_x=(2,), bert_out=(4, 2))
    saved_once = header(bert_in=(4, 2), bert_x=(2,))
    for missing in ("base", "skip"):
        selection = select({"a": saved_once, "b": base}, base, Parts(missing=missing), tied=tied)
        assert selection.merged == set(base)
    with pytest.raises(ValueError, match=r"a lacks key 'bert\.out'"):
        select({"a": saved_once}, base, tied=tied)
    longer = {**base, "bert.out": torch.empty(5, 2, device="meta")}
    selection = select({"a": longer}, base, Parts(missing="base"), tied=tied)
    assert selection.merged == {"bert.x"}
    assert select({"a": longer}, base, Parts(missing="skip"), tied=tied).keys == ("bert.x",)
    with pytest.raises(
        ValueError, match=r"'bert\.out' is tied to 'bert\.in': include or exclude both"
    ):
        select({"a": base}, base, Parts(exclude="bert.out"), tied=tied)


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"include": "bort.*"},
        ValueError,
        "include pattern 'bort.*' matches no key; the nearest is 'bert.b'",
    ),
    ({"exclude": ["head", "Head"]}, ValueError, "exclude pattern 'Head' matches no key"),
    ({"include": ""}, ValueError, "include pattern '' matches no key"),
    ({"include": []}, ValueError, "nothing to merge"),
    ({"exclude": "*"}, ValueError, "nothing to merge: exclude takes every key"),
    ({"include": "head", "missing": "base"}, ValueError, "nothing to merge: no selected key has"),
    ({"include": "head"}, ValueError, "three['head'] has shape (3, 3), expected (2, 3)"),
    ({"missing": "ignore"}, ValueError, "missing is 'ignore', expected one of 'error', 'base',"),
    ({"include": 3}, TypeError, "include is 3, expected a pattern or a list of patterns"),
    ({"exclude": ["head", None]}, TypeError, "exclude is ['head', None], expected a pattern"),
]


@pytest.mark.parametrize(("options", "error", "message"), REFUSED)
def test_refusals(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        select({"two": TWO, "three": THREE}, BASE, Parts(**options))

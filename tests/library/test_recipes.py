"""Recipes in mergekit's words, against the same merges in this library's words."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import mergelib as ml

pytest.importorskip("yaml", reason="recipes need PyYAML, which a bare installation lacks")

LAYERS = 3
SHAPES = {
    "embed.weight": (5, 4),
    **{f"layers.{i}.attn.weight": (4, 4) for i in range(LAYERS)},
    **{f"layers.{i}.mlp.weight": (6, 4) for i in range(LAYERS)},
    "norm.weight": (4,),
}
State = dict[str, Tensor]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, name in enumerate(("base", "a", "b")):
        generator = torch.Generator().manual_seed(seed)
        state = {key: torch.randn(shape, generator=generator) for key, shape in SHAPES.items()}
        ml.save_state_dict(state, tmp_path / f"{name}.safetensors")
    return tmp_path


def model(name: str, **parameters: Any) -> str:
    inner = "".join(f"\n      {key}: {value}" for key, value in parameters.items())
    return f"  - model: {name}.safetensors" + (f"\n    parameters:{inner}" if inner else "")


def run(folder: Path, text: str) -> State:
    recipe = folder / "recipe.yml"
    recipe.write_text(text)
    return ml.load_state_dict(ml.run_recipe(recipe, folder / "out.safetensors", overwrite=True))


def merged(folder: Path, method: str, *names: str, base: bool = True, **options: Any) -> State:
    paths = [folder / f"{name}.safetensors" for name in names]
    options["pretrained"] = folder / "base.safetensors" if base else None
    return ml.merge(method, paths, **options)


BASE = "base_model: base.safetensors"
ENDS = {"over_layers": [0, 0.5, 1], "*": 0}
CASES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "linear": (
        ["merge_method: linear", "models:", model("a", weight=1), model("b", weight=0.5)],
        {"method": "average", "weights": [2 / 3, 1 / 3], "base": False},
    ),
    "weights as they are": (
        [
            "merge_method: linear",
            "parameters:\n  normalize: false",
            "models:",
            model("a", weight=1),
            model("b", weight=0.5),
        ],
        {"method": "average", "weights": [1, 0.5], "base": False},
    ),
    "gradient, lambda": (
        [
            "merge_method: task_arithmetic",
            BASE,
            "parameters:\n  lambda: 0.5",
            "models:",
            model("base"),
            model("a", weight="[0, 1, 2]"),
            model("b", weight=0.8),
        ],
        {"method": "task_arithmetic", "scale": [ENDS, 0.4]},
    ),
    "one weight for all": (
        [
            "merge_method: task_arithmetic",
            BASE,
            "parameters:\n  weight: 0.3",
            "models:",
            model("a"),
            model("b"),
        ],
        {"method": "task_arithmetic", "scale": 0.3},
    ),
    "ties": (
        [
            "merge_method: ties",
            BASE,
            "parameters:\n  normalize: false\n  int8_mask: true",
            "models:",
            model("a", weight=0.5, density=0.5),
            model("b", weight=0.7, density=0.25),
        ],
        {"method": "ties", "weights": [0.5, 0.7], "density": [0.5, 0.25], "reduce": "sum"}
        | {"trim": "tensor"},
    ),
    "filters": (
        [
            "merge_method: ties",
            BASE,
            "parameters:\n  density: 0.5",
            "models:",
            model("a", weight="[{filter: mlp, value: [0, 0.5, 1]}, {value: 0.2}]"),
            model("b", weight=1),
        ],
        {"method": "ties", "density": 0.5, "trim": "tensor"}
        | {"weights": [{"*mlp*": {"over_layers": [0, 0.5, 1]}, "*": 0.2}, 1]},
    ),
    "slerp of whole slices": (
        ["merge_method: slerp", "base_model: a.safetensors", "slices:", "  - sources:"]
        + [f"      - model: {n}.safetensors\n        layer_range: [0, 3]" for n in "ab"]
        + ["parameters:\n  t:\n    - filter: attn\n      value: [0, 1]\n    - value: 0.5"],
        {"method": "slerp", "t": {"*attn*": {"over_layers": [0, 1]}, "*": 0.5}, "base": False},
    ),
    "dare_linear": (
        [
            "merge_method: dare_linear",
            BASE,
            "models:",
            model("a", weight=0.5, density=0.25),
            model("b", weight=1, density=1),
        ],
        {"method": "dare", "scale": [0.5, 1], "drop_rate": [0.75, 0]},
    ),
    "dare_ties": (
        [
            "merge_method: dare_ties",
            BASE,
            "parameters: {rescale: true, lambda: 0.5}",
            "models:",
            model("a", weight="[0, 1]", density=0.25),
            model("b", weight=1, density=1),
        ],
        {"method": "dare", "combine": "ties", "reduce": "sum", "scale": 0.5}
        | {"weights": [{"over_layers": [0, 1], "*": 0}, 1], "drop_rate": [0.75, 0]},
    ),
    "della": (
        [
            "merge_method: della",
            BASE,
            "parameters: {epsilon: 0.1}",
            "models:",
            model("a", weight=0.5, density=0.5),
            model("b", weight=1, density=0.25),
        ],
        {"method": "della", "weights": [0.5, 1], "drop_rate": [0.5, 0.75], "epsilon": 0.2},
    ),
    "della_linear": (
        [
            "merge_method: della_linear",
            BASE,
            "models:",
            model("a", weight=0.5, density=1, epsilon=0.1),
            model("b", weight=1, density=0.25),
            "parameters: {epsilon: 0.2}",
        ],
        {"method": "della", "combine": "task_arithmetic", "scale": [0.5, 1]}
        | {"drop_rate": [0, 0.75], "epsilon": [0.2, 0.4]},
    ),
    "breadcrumbs_ties": (
        [
            "merge_method: breadcrumbs_ties",
            BASE,
            "models:",
            model("a", weight=0.5, density=0.5, gamma=0.1),
            model("b", weight=1, density=0.25, gamma=0),
        ],
        {"method": "breadcrumbs", "combine": "ties", "reduce": "sum", "scale": 1.0}
        | {"weights": [0.5, 1], "density": [0.5, 0.25], "gamma": [0.1, 0]},
    ),
    "nuslerp": (
        ["merge_method: nuslerp", "models:", model("a", weight="[1, 2]"), model("b", weight=3)],
        {"method": "nuslerp", "weights": [{"over_layers": [1, 2], "*": 1}, 3], "base": False},
    ),
    "nuslerp of task vectors, by row": (
        [
            "merge_method: nuslerp",
            BASE,
            "parameters: {nuslerp_flatten: false}",
            "models:",
            model("a", weight=1),
            model("b", weight=3),
        ],
        {"method": "nuslerp", "weights": [1, 3], "along": "rows"},
    ),
    "multislerp": (
        [
            "merge_method: multislerp",
            BASE,
            "parameters: {eps: 0.001}",
            "models:",
            model("a", weight=1),
            model("b", weight="[{filter: mlp, value: 2}, {value: 3}]"),
        ],
        {"method": "karcher", "weights": [1, {"*mlp*": 2, "*": 3}], "steps": 0},
    ),
    "weights of multislerp as they are": (
        [
            "merge_method: multislerp",
            "parameters: {normalize_weights: false}",
            "models:",
            model("a", weight=1),
            model("b", weight=2),
        ],
        {"method": "karcher", "weights": [1, 2], "normalise": False, "steps": 0, "base": False},
    ),
    "karcher": (
        [
            "merge_method: karcher",
            "parameters: {max_iter: 50, tol: 0.001}",
            "models:",
            model("a"),
            model("b"),
        ],
        {"method": "karcher", "steps": 50, "tolerance": 0.001, "base": False},
    ),
    "karcher with a base among the models": (
        ["merge_method: karcher", BASE, "models:", model("a"), model("b")],
        {"method": "karcher", "experts": ["base", "a", "b"], "base": False},
    ),
    "sce": (
        [
            "merge_method: sce",
            BASE,
            "parameters:\n  select_topk: [1, 0.5]",
            "models:",
            model("a"),
            model("b"),
        ],
        {"method": "sce", "density": {"over_layers": [1, 0.5], "*": 1}},
    ),
    "ram": (
        [
            "merge_method: ram",
            BASE,
            "parameters: {epsilon: 0.5}",
            "models:",
            model("a"),
            model("b"),
        ],
        {"method": "ram", "epsilon": 0.5},
    ),
    "ramplus_tl": (
        [
            "merge_method: ramplus_tl",
            BASE,
            "parameters: {epsilon: 0.5, alpha: 0.3}",
            "models:",
            model("a"),
            model("b"),
        ],
        {"method": "ram", "epsilon": 0.5, "r": 0.1, "alpha": 0.3},
    ),
    "arcee_fusion": (
        ["merge_method: arcee_fusion", BASE, "models:", model("base"), model("a")],
        {"method": "arcee_fusion", "experts": ["a"]},
    ),
    "nearswap": (
        [
            "merge_method: nearswap",
            BASE,
            "models:",
            model("a"),
            "parameters:\n  t:\n    - filter: mlp\n      value: 0.5\n    - value: 0.1",
        ],
        {"method": "nearswap", "t": {"*mlp*": 0.5, "*": 0.1}, "experts": ["a"]},
    ),
    "passthrough": (
        [
            "merge_method: passthrough",
            "models:",
            model("a", scale="[{filter: attn, value: 0}, {value: 1}]"),
        ],
        {"method": "average", "weights": [{"*attn*": 0, "*": 1}], "experts": ["a"], "base": False},
    ),
    "a method of this library": (
        [
            "merge_method: cart",
            BASE,
            "parameters:\n  rank_ratio: 0.5\n  scale: 1.5",
            "models:",
            model("a"),
            model("b"),
        ],
        {"method": "cart", "rank_ratio": 0.5, "scale": 1.5},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_recipe_is_the_same_merge(name: str, folder: Path) -> None:
    lines, options = CASES[name]
    found = run(folder, "\n".join(lines))
    names = options.pop("experts", ["a", "b"])
    expected = merged(folder, options.pop("method"), *names, **options)
    assert found.keys() == SHAPES.keys()
    for key, value in found.items():
        torch.testing.assert_close(value, expected[key], rtol=1e-6, atol=1e-7)


def test_a_gradient_by_hand(folder: Path) -> None:
    """Weights 0, 1/2 and 1 in the three layers, and the first one outside of them."""
    text = "\n".join(
        ["merge_method: task_arithmetic", BASE, "models:", model("a", weight="[0, 1]")]
    )
    found, base, a = (
        run(folder, text),
        *(ml.load_state_dict(folder / f"{name}.safetensors") for name in ("base", "a")),
    )
    for key, share in {
        "embed": 0,
        "layers.0.mlp": 0,
        "layers.1.attn": 0.5,
        "layers.2.mlp": 1,
    }.items():
        name = f"{key}.weight"
        torch.testing.assert_close(found[name], base[name] + share * (a[name] - base[name]))


def test_steps_follow_each_other(folder: Path) -> None:
    first = ["name: both", "merge_method: linear", "models:"]
    first += [model("a", weight=1), model("b", weight=1)]
    second = ["merge_method: task_arithmetic", BASE, "dtype: bfloat16", "models:"]
    second += ["  - model: both\n    parameters: {weight: 0.5}"]
    found = run(folder, "\n".join([*first, "---", *second]))
    a, b, base = (ml.load_state_dict(folder / f"{name}.safetensors") for name in ("a", "b", "base"))
    for key, value in found.items():
        expected = base[key] + 0.5 * ((a[key] + b[key]) / 2 - base[key])
        assert value.dtype == torch.bfloat16
        torch.testing.assert_close(value, expected.bfloat16())
    assert sorted(path.name for path in folder.iterdir()) == [
        *("a.safetensors", "b.safetensors", "base.safetensors", "out.safetensors", "recipe.yml")
    ], "nothing else is left"


HEAD = ["merge_method: ties", BASE, "models:"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["merge_method: ties", "modles: []"],
            "line 2: unknown field modles; the nearest is models",
        ),
        (["models:", model("a")], "line 1: merge_method is missing"),
        (["merge_method: ties"], "line 1: models is missing"),
        (
            ["merge_method: ties", "merge_method: linear"],
            "line 2: merge_method stands here a second",
        ),
        (
            ["merge_method: zipit", "models:", model("a")],
            "line 1: no method 'zipit' here; there are:",
        ),
        ([*HEAD, model("a")], "line 1: no model has a weight among its parameters"),
        ([*HEAD, model("a", weight=1), model("b")], "line 3: model 'b.safetensors' has no weight"),
        (
            [*HEAD, model("a", wieght=1), model("b")],
            "has no wieght, which another model has: give it to every model, or correct its name",
        ),
        ([*HEAD, "  - a.safetensors"], "line 3: 'a.safetensors' in models, expected model: PATH"),
        ([*HEAD, model("a") + "\n    wieght: 1"], "line 5: unknown field wieght"),
        (
            [*HEAD, model("a", weight="[{filter: mpl, value: 1}]")],
            "line 6: the filter 'mpl' matches no key",
        ),
        (
            [
                "merge_method: dare_linear",
                *HEAD[1:],
                model("a", weight=1, density="{filter: mpl, value: 1}"),
            ],
            "line 7: the filter 'mpl' matches no key",
        ),
        ([*HEAD, model("a", weight="[{filter: mlp, value: 1}]")], "no pattern of weights"),
        ([*HEAD, model("a", weight=1, density=2)], "density"),
        (
            [*HEAD, model("a", weight=1), "tokenizer_source: c"],
            "tokenizer is 'c', expected one of 'base'",
        ),
        ([*HEAD, model("a", weight=1), "tokenizer:\n  tokens: 3"], "line 8: unknown field tokens"),
        (["- 1"], "line 1: [1], expected merge_method: ..."),
        (["merge_method: ties", "models: 3"], "line 2: models is 3, expected a list"),
        (
            ["merge_method: [ties]", "models: []"],
            "line 1: merge_method is ['ties'], expected",
        ),
        ([*HEAD, "  - model: 3"], "line 4: model is 3, expected a path"),
        (
            [*HEAD, "  - model: a", "    parameters: 3"],
            "line 5: parameters is 3, expected",
        ),
        (["merge_method: slerp", "slices: 3"], "line 2: slices is 3, expected a list"),
        (["merge_method: slerp", "slices: [3]"], "line 2: slices that stack or leave out layers"),
        (
            ["merge_method: slerp", "slices: [{sources: [3]}]"],
            "line 2: 3 in sources, expected",
        ),
        (
            ["merge_method: slerp", "slices: [{sources: [{model: a, layer_range: 3}]}]"],
            "line 2: layer_range is 3, expected a list",
        ),
        (
            ["merge_method: breadcrumbs", *HEAD[1:], model("a", weight=1)],
            "line 1: no model has a density among its parameters",
        ),
        (
            [
                "merge_method: dare_ties",
                BASE,
                "parameters: {rescale: false}",
                HEAD[2],
                model("a", weight=1),
            ],
            "line 1: rescale is False, expected True for this method",
        ),
        (
            [
                "merge_method: nuslerp",
                "models:",
                model("a", weight=1),
                model("b", weight=1),
                "parameters: {nuslerp_row_wise: true, nuslerp_flatten: false}",
            ],
            "line 1: nuslerp_row_wise, which means columns, is not supported",
        ),
        (["merge_method: multislerp", "models:", model("a")], "line 1: no model has a weight"),
        (
            ["merge_method: passthrough", "models:", model("a"), model("b")],
            "line 2: passthrough has one model",
        ),
        (["a: [1"], "is not YAML"),
        (["a: \x1a"], "is not YAML"),
        (["a: " + "[" * 5000], "is not YAML"),
        (["dtype: 2020-99-99"], "line 1: '2020-99-99': month must be in 1..12"),
        ([*HEAD, "  - model:"], "line 3: {'model': None} in models, expected model: PATH"),
        (
            [*HEAD, model("a", weight=1), "tokenizer: [[1]]"],
            "line 7: tokenizer is [[1]]",
        ),
        (
            [*HEAD, model("a", weight=1), "tokenizer: {source: 3}"],
            "line 7: source is 3, expe",
        ),
        ([*HEAD, model("a"), "chat_template: [a]"], "line 5: chat_template is ['a'], expected a"),
        ([""], "is empty, expected a merge"),
        (
            [*HEAD, model("a", weight=1), "---", *HEAD, model("b", weight=1)],
            "line 1: a merge before",
        ),
        (
            ["merge_method: passthrough", "slices:"]
            + [f"  - sources:\n      - model: {n}\n        layer_range: [0, 2]" for n in "ab"],
            "line 2: slices that stack or leave out layers are not supported",
        ),
        (
            [
                "merge_method: linear",
                "slices:",
                "  - sources:",
                "      - model: a.safetensors\n        layer_range: [0, 2]",
                "        parameters: {weight: 1}",
            ],
            "line 1: slices that stack or leave out layers are not supported: ",
        ),
    ],
)
def test_what_is_refused(lines: list[str], message: str, folder: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        run(folder, "\n".join(lines))
    assert not (folder / "out.safetensors").exists()
    assert not list(folder.glob(".recipe*"))


def test_a_folder_keeps_the_recipe(folder: Path) -> None:
    recipe = folder / "recipe.yml"
    lines, _ = CASES["linear"]
    recipe.write_text("\n".join(lines))
    out = ml.run_recipe(recipe, folder / "merged")
    assert (out / "recipe.yml").read_text() == recipe.read_text()


def test_no_step_is_computed_for_an_output_that_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that exists, or that a step before the last reads."""
    ml.merge_files("average", [folder / "a.safetensors"], folder / "first")
    before = (folder / "first" / "model.safetensors").read_bytes()
    lines = ["name: mean", *HEAD, "  - {model: first, parameters: {weight: 1}}", "---"]
    (folder / "recipe.yml").write_text("\n".join([*lines, *HEAD, model("mean", weight=1)]))
    monkeypatch.setattr("mergelib.recipes.merge_files", None)
    for output, overwrite, message in [
        ("first", True, "is or holds an input"),
        ("first/model.safetensors", True, "is or holds an input"),
        ("a.safetensors", False, "exists; pass overwrite=True"),
    ]:
        with pytest.raises(ValueError, match=message):
            ml.run_recipe(folder / "recipe.yml", folder / output, overwrite=overwrite)
    assert (folder / "first" / "model.safetensors").read_bytes() == before


def test_a_folder_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is a folder: pass a YAML file, or a .* README\.md"):
        ml.run_recipe(tmp_path, tmp_path / "out")

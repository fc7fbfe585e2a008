"""One call for every message that the page "Errors and warnings" explains.

A case is named like its anchor on the page, without ``message-``. It runs in an empty folder, and
`message_of` returns what the library says about it.
"""

import collections
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import mergelib as ml
from mergelib.align import git_rebasin
from mergelib.cli import app as cli
from mergelib.io import resolve_base
from mergelib.io.hub import fetch

State = dict[str, Tensor]
Case = Callable[[], Any]
CASES: dict[str, Case] = {}


def case(name: str) -> Callable[[Case], Case]:
    """Register a function as the case of this name."""

    def register(function: Case) -> Case:
        assert name not in CASES, name
        CASES[name] = function
        return function

    return register


def message_of(run: Case) -> tuple[str, bool]:
    """Return the error of a call, else its last warning, and whether it is a warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            run()
        except Exception as raised:
            return str(raised), False
    return str(caught[-1].message), True


# ----------------------------------------------------------------------------------- the models


def weights(seed: int) -> State:
    """A body and a head, in the names of Hugging Face."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "embeddings.weight": (12, 32),
        "encoder.dense.weight": (32, 32),
        "encoder.dense.bias": (32,),
        "classifier.weight": (3, 32),
    }
    return {key: torch.randn(shape, generator=generator) for key, shape in shapes.items()}


BASE = weights(0)


def tuned(seed: int) -> State:
    """The base model after a little training."""
    return ml.add(BASE, weights(seed), alpha=0.02)


def merge(
    spoil: Callable[[State], State] = lambda state: state, method: str = "average", **options: Any
) -> State:
    """Merge two experts, of which the second one is spoilt."""
    options = {"pretrained": BASE, **options}
    return ml.merge(method, [tuned(1), spoil(tuned(2))], **options)


def without(*keys: str) -> Callable[[State], State]:
    return lambda state: {key: state[key] for key in state if key not in keys}


def more(**tensors: Tensor) -> Callable[[State], State]:
    return lambda state: {**state, **{k.replace("__", "."): t for k, t in tensors.items()}}


def folder(name: str, state: State, **files: Any) -> str:
    """A model's folder with JSON files, named without their ending."""
    Path(name).mkdir(exist_ok=True)
    ml.save_state_dict(state, f"{name}/model.safetensors")
    for file, content in files.items():
        Path(name, f"{file}.json").write_text(json.dumps(content))
    return name


def folders(of_the_others: dict[str, Any], of_the_last: dict[str, Any]) -> Sequence[str]:
    """Folders of a base model and two experts, of which the last one has other files."""
    both = [("base", BASE, of_the_others), ("a", tuned(1), of_the_others)]
    both.append(("b", tuned(2), {**of_the_others, **of_the_last}))
    return [folder(name, state, **files) for name, state, files in both]


def merge_folders(of_the_others: dict[str, Any], of_the_last: dict[str, Any]) -> None:
    base, *experts = folders(of_the_others, of_the_last)
    ml.merge_files("average", experts, "merged", pretrained=base)


def merge_files(*paths: str, output: str = "merged.safetensors", **options: Any) -> Path:
    return ml.merge_files("average", paths, output, **options)


def saved(name: str, state: State) -> str:
    ml.save_state_dict(state, name)
    return name


def adapt(method: str, **options: Any) -> Any:
    """Merge two linear classifiers with data of the tasks "digits" and "letters"."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    state = model.state_dict()
    experts = {
        name: ml.scale(state, factor) for name, factor in (("digits", 1.1), ("letters", 0.9))
    }
    data = {task: (torch.rand(6, 4), torch.tensor([0, 1, 2] * 2)) for task in experts}
    return ml.adapt(method, experts, **{"pretrained": model, "data": data, **options})


def shell(*arguments: str) -> None:
    """A call of the command line, whose errors are not caught."""
    cli(list(arguments), standalone_mode=False)


# ------------------------------------------------------------------------------ keys and shapes

case("lacks-key")(lambda: merge(without("classifier.weight")))
case("extra-key")(lambda: merge(more(classifier__bias=torch.zeros(3))))
case("shape")(lambda: merge(more(classifier__weight=torch.zeros(5, 32))))
case("other-names")(lambda: merge(lambda state: {f"model.{key}": state[key] for key in state}))
case("other-names-allowed")(
    lambda: merge(
        lambda state: {k if "class" in k else f"model.{k}": state[k] for k in state},
        missing="experts",
    )
)
case("rename")(
    lambda: merge(
        lambda state: {f"module.{key}": state[key] for key in state}, rename={"modul.*": "*"}
    )
)
case("dtype-of-one")(lambda: merge(more(encoder__dense__bias=torch.ones(32, dtype=torch.int64))))
case("pattern")(lambda: merge(exclude="head.*"))
case("everything-excluded")(lambda: merge(exclude="*"))
case("no-shape-in-common")(lambda: merge(include="classifier*", missing="skip", spoil=more(
    classifier__weight=torch.zeros(5, 32))))  # fmt: skip
case("skipped")(lambda: merge(without("classifier.weight"), missing="skip"))
case("missing-base")(lambda: merge(missing="base", pretrained=None))


# ------------------------------------------------------- adapters, quantised weights and dtypes

LORA = {
    "encoder.dense.lora_A.weight": torch.ones(4, 32),
    "encoder.dense.lora_B.weight": torch.ones(32, 4),
}
case("adapters")(lambda: merge(lambda state: {**state, **LORA}))


def adapter(module: str = "dense", **config: str | int) -> None:
    """Write the folder of an adapter of one module, and merge with it."""
    place = f"base_model.model.encoder.{module}"
    factors = {"lora_A": torch.ones(4, 32), "lora_B": torch.ones(32, 4)}
    state = {f"{place}.{name}.weight": tensor for name, tensor in factors.items()}
    ml.save_state_dict(state, "lora/adapter_model.safetensors")
    Path("lora/adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **config}))
    ml.merge("average", ["lora"], pretrained=BASE)


@case("adapter-folder")
def _() -> None:
    adapter()
    ml.merge("average", ["lora"])


case("adapter-kind")(lambda: adapter(peft_type="IA3"))
case("adapter-fit")(lambda: adapter("other"))
case("adapter-ranks")(lambda: adapter(r=8))
case("adapter-entry")(lambda: adapter(lora_alpha="16"))


def merge_adapters(method: str, *bases: str) -> None:
    """Write an adapter of each base, and merge them into one."""
    for number, base in enumerate(bases):
        adapter(base_model_name_or_path=base)
        Path("lora").rename(f"lora_{number}")
    ml.merge_adapters(method, [f"lora_{i}" for i in range(len(bases))], "merged")


@case("adapter-other-base")
def _() -> None:
    adapter(base_model_name_or_path="org/small")
    Path("lora").rename("lora_0")
    adapter(base_model_name_or_path="org/large")
    Path("lora").rename("lora_1")
    resolve_base({"a": "lora_0", "b": "lora_1"}, BASE)


case("adapter-bases")(lambda: merge_adapters("average", "org/small", "org/large"))


@case("adapter-names")
def _() -> None:
    for name in ("encoder", "module.encoder"):
        adapter()
        file = Path(Path("lora").rename(name), "adapter_model.safetensors")
        state = ml.load_state_dict(file)
        ml.save_state_dict({k.replace("encoder", name): t for k, t in state.items()}, file)
    ml.merge_adapters("average", ["encoder", "module.encoder"], "merged")


case("adapter-rank")(lambda: merge_adapters("ties", "org/small", "org/small"))
case("adapter-copies")(lambda: merge_adapters("average", "org/small", "org/small"))
case("quantised")(lambda: merge(more(encoder__dense__weight=torch.ones(32, 32, dtype=torch.int8))))


@case("integers")
def _() -> None:
    one, other = ({**BASE, "index": torch.tensor(numbers)} for numbers in ([1, 2, 3], [3, 2, 1]))
    ml.merge("average", [one, other])


case("dtype-of-all")(lambda: ml.merge("average", [{"w": torch.ones(2).to(torch.float8_e4m3fn)}]))


@case("dtype-of-file")
def _() -> None:
    entry = {"w": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}}
    header = json.dumps(entry).encode()
    Path("a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"12")
    merge_files("a.safetensors")


# --------------------------------------------------------- configurations, vocabularies and ties

HEADS = {"config": {"model_type": "bert", "num_attention_heads": 4}}
case("heads")(
    lambda: merge_folders(HEADS, {"config": {**HEADS["config"], "num_attention_heads": 8}})
)
case("configuration")(
    lambda: merge_folders(HEADS, {"config": {**HEADS["config"], "rope_theta": 1e6}})
)
TOKENS = [*"abcdefghijkl"]


def vocabulary(tokens: Sequence[str]) -> dict[str, Any]:
    return {"vocab": {token: row for row, token in enumerate(tokens)}}


case("tokens")(lambda: merge_folders(vocabulary(TOKENS), vocabulary(TOKENS[::-1])))
case("lost-tokens")(
    lambda: merge_folders(vocabulary(TOKENS[:-1]), vocabulary([*TOKENS[:-1], "<end>"]))
)
case("one-token")(lambda: merge_folders(vocabulary(TOKENS), vocabulary([*TOKENS[:-1], "<end>"])))


@case("no-vocabulary")
def _() -> None:
    base, *experts = folders({}, {})
    Path(base, "tokenizer.model").write_bytes(b"pieces")
    ml.merge_files("average", experts, "merged", pretrained=base, tokenizer="union")


@case("slow-tokenizer")
def _() -> None:
    base, *experts = folders(vocabulary(TOKENS), vocabulary([*TOKENS[:-1], "<end>"]))
    ml.merge_files("average", experts, "merged", pretrained=base, tokenizer="union")


@case("splitting")
def _() -> None:
    base, *experts = folders({}, {})
    for name, text in zip((base, *experts), ("a b", "a b", "b c"), strict=True):
        Path(name, "merges.txt").write_text(text)
    ml.merge_files("average", experts, "merged", pretrained=base)


def labels(*names: str) -> dict[str, Any]:
    return {"config": {"id2label": dict(enumerate(names))}}


SENTIMENT = labels("negative", "neutral", "positive")
case("labels")(lambda: merge_folders(SENTIMENT, labels("positive", "neutral", "negative")))
case("other-labels")(lambda: merge_folders(SENTIMENT, labels("sports", "politics", "science")))


@case("one-tied")
def _() -> None:
    table = torch.randn(12, 32)
    one = {"embed_tokens.weight": table, "lm_head.weight": table}
    other = {"embed_tokens.weight": table, "lm_head.weight": torch.randn(12, 32)}
    ml.merge("average", [one, other])


@case("head-of-one")
def _() -> None:
    one = {"embed_tokens.weight": torch.randn(12, 32), "lm_head.weight": torch.randn(12, 32)}
    ml.merge("average", [one, {"embed_tokens.weight": torch.randn(12, 32)}])


@case("tied-names")
def _() -> None:
    model = {"embed_tokens.weight": torch.ones(12, 32), "norm.weight": torch.ones(32)}
    model["lm_head.weight"] = model["embed_tokens.weight"]
    ml.merge("average", [model], exclude="lm_head*")


@case("layouts")
def _() -> None:
    fused = {"experts.down_proj": torch.ones(2, 64, 64)}
    alone = {f"experts.{i}.down_proj.weight": torch.ones(64, 64) for i in range(2)}
    ml.merge("average", [fused, alone])


@case("agreement")
def _() -> None:
    chat = {"tokenizer_config": {"chat_template": "<chat>"}}
    base, experts = folder("base", BASE), [folder(n, tuned(i), **chat) for i, n in enumerate("ab")]
    ml.merge_files("average", experts, "merged", pretrained=base)


@case("modules")
def _() -> None:
    modules = {"modules": [{"path": ""}, {"path": "2_Dense"}]}
    names = folders(modules, {})
    for seed, name in enumerate(names):
        Path(name, "2_Dense").mkdir()
        if seed:
            saved(f"{name}/2_Dense/model.safetensors", weights(seed))
    ml.merge_files("average", names[1:], "merged", pretrained=names[0])


# ------------------------------------------------------------------- values, and kinship of models

case("weights-sum")(lambda: merge(weights=[50, 50]))
case("scale")(lambda: merge(method="task_arithmetic", scale=30))
case("not-finite")(lambda: merge(more(classifier__weight=torch.full((3, 32), torch.nan))))
case("overflow")(
    lambda: ml.merge("average", [{"w": torch.full((4,), 6e4).half()}] * 2, weights=[1, 1])
)
case("copy-overflow")(
    lambda: merge(
        pretrained=BASE | {"classifier.weight": torch.full((3, 32), 7e4)},
        exclude="classifier.*",
        dtype="float16",
    )
)
case("unrelated")(lambda: ml.merge("average", [BASE, weights(7)]))
QUANTISED = {"w.weight": torch.ones(2, 2).to(torch.float8_e4m3fn), "b": torch.ones(2)}
QUANTISED["w.weight_scale_inv"] = torch.ones(1, 1)
case("scales")(lambda: ml.merge("average", [QUANTISED] * 2, exclude="w.weight"))
case("swapped")(lambda: ml.merge("average", [BASE, tuned(2)], pretrained=tuned(1)))
case("parallel")(
    lambda: ml.merge(
        "ties", [ml.add(tuned(i), ml.scale(weights(9), 0.1)) for i in (1, 2)], pretrained=BASE
    )
)
case("task-vector")(lambda: merge(lambda state: ml.subtract(state, BASE)))
case("same-expert")(lambda: ml.merge("average", [tuned(1), tuned(1)], pretrained=BASE))
case("no-larv-layer")(lambda: ml.larv_scales(BASE, BASE))
case("is-pretrained")(lambda: merge(lambda _: BASE))


@case("not-factorised")
def _() -> None:
    torch.manual_seed(0)
    base = {"features.0.weight": torch.randn(32, 3, 5, 5)}
    ml.merge("tsv", [ml.scale(base, 1.01), ml.scale(base, 0.99)], pretrained=base)


# ---------------------------------------------------------------------------------------- files

case("no-file")(lambda: merge_files("expert-a.safetensors"))
case("hub-name")(lambda: merge_files("google-bert/bert-base-uncased"))


@case("not-on-the-hub")
def _() -> None:
    refused = OSError("Repository Not Found")
    with mock.patch("huggingface_hub.snapshot_download", side_effect=refused):
        fetch("org/name")


@case("no-weights")
def _() -> None:
    for part in ("unet", "vae"):
        saved(f"a/{part}/diffusion_pytorch_model.safetensors", tuned(1))
    merge_files("a")


@case("other-format")
def _() -> None:
    Path("a.gguf").write_bytes(b"GGUF")
    merge_files("a.gguf")


@case("code")
def _() -> None:
    torch.save({"state_dict": tuned(1), "args": collections.deque([3])}, "a.pt")
    merge_files("a.pt")


@case("no-state-dict")
def _() -> None:
    torch.save({"student": tuned(1), "teacher": tuned(2)}, "a.pt")
    merge_files("a.pt")


@case("key")
def _() -> None:
    torch.save({"model": tuned(1), "params_ema": tuned(2)}, "a.pt")
    merge_files("a.pt::ema")


@case("several-sets")
def _() -> None:
    torch.save({"model": tuned(1), "ema": tuned(2)}, "a.pt")
    merge_files("a.pt")


@case("truncated")
def _() -> None:
    whole = Path(saved("a.safetensors", tuned(1)))
    whole.write_bytes(whole.read_bytes()[:-100])
    merge_files("a.safetensors")


@case("pointer")
def _() -> None:
    Path("a.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    merge_files("a.safetensors")


@case("not-json")
def _() -> None:
    Path(folder("a", tuned(1)), "config.json").write_text('{"mod')
    merge_files("a")


@case("beside")
def _() -> None:
    Path("a").mkdir()
    saved("a/model-00001-of-00002.safetensors", tuned(1))
    merge_files("a")


@case("shard")
def _() -> None:
    Path("a").mkdir()
    index = {"weight_map": {"w": "model-00001-of-00002.safetensors"}}
    Path("a/model.safetensors.index.json").write_text(json.dumps(index))
    merge_files("a")


@case("compressed")
def _() -> None:
    ml.compress("emr", [tuned(1), tuned(2)], pretrained=BASE).save("parts.safetensors")
    content = Path("parts.safetensors").read_bytes()
    Path("parts.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    ml.load_compressed("parts.safetensors")


@case("changed")
def _() -> None:
    checkpoint = ml.Checkpoint(saved("a.safetensors", tuned(1)))
    saved("a.safetensors", {"w": torch.ones(1)})
    checkpoint.check()


@case("output-exists")
def _() -> None:
    saved("merged.safetensors", BASE)
    merge_files(saved("a.safetensors", tuned(1)))


@case("output-folder")
def _() -> None:
    Path("merged").mkdir()
    Path("merged/notes.txt").touch()
    merge_files(saved("a.safetensors", tuned(1)), output="merged", overwrite=True)


@case("output-is-input")
def _() -> None:
    merge_files(saved("a.safetensors", tuned(1)), output="a.safetensors", overwrite=True)


case("output-format")(lambda: merge_files(saved("a.safetensors", tuned(1)), output="merged.pt"))


# ------------------------------------------------------------------ methods and hyperparameters

case("unknown-method")(lambda: merge(method="dare_ties"))
case("other-family")(lambda: merge(method="adamerging"))
case("calibration")(lambda: merge(method="svc"))
case("decimal-comma")(
    lambda: shell("merge", "ties", "a", "b", "-o", "c.safetensors", "--set", "scale=0,3")
)
case("hyperparameter")(lambda: merge(method="ties", drop_rate=0.5))
case("value")(lambda: merge(method="ties", density=20))
case("needs-pretrained")(lambda: merge(method="tsv", pretrained=None))
case("slerp")(lambda: ml.merge("slerp", [tuned(1), tuned(2), tuned(3)]))
case("weights")(lambda: merge(weights=[0.2, 0.3, 0.5]))
case("same-for-all")(lambda: merge(method="ties", scale=[0.3, 0.5]))
case("no-pattern")(lambda: merge(method="task_arithmetic", scale={"*dense*": 0.2}))
case("pattern-unmatched")(lambda: merge(method="task_arithmetic", scale={"*mlp*": 0.2, "*": 1}))
case("pattern-unused")(lambda: merge(method="task_arithmetic", scale={"*": 1, "*dense*": 0.2}))
case("trim")(lambda: merge(method="ties", density={"*dense*": 0.3, "*": 0.5}))
case("missing-experts")(
    lambda: merge(more(classifier__weight=torch.ones(5, 32)), missing="experts")
)
case("no-experts")(lambda: ml.merge("average", []))
case("single-expert")(lambda: ml.merge("average", tuned(1)))  # type: ignore[arg-type]
case("dtype")(lambda: merge(dtype="int8"))
case("shard-size")(
    lambda: merge_files(
        saved("a.safetensors", tuned(1)), output="merged", max_shard_size="5 gigabytes"
    )
)
case("device")(lambda: merge(device="cuda:99"))
case("setting")(lambda: shell("merge", "ties", "a", "b", "-o", "c", "--set", "density"))
case("setting-json")(
    lambda: shell("merge", "ties", "a", "b", "-o", "c", "--set", "scale={'*': 0.3}")
)
case("setting-option")(lambda: shell("merge", "ties", "a", "-o", "c", "--set", "pretrained=base"))


@case("package")
def _() -> None:
    with mock.patch.dict(sys.modules, {"scipy": None, "scipy.optimize": None}):
        network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        git_rebasin(network.state_dict(), network.state_dict(), network)


# ------------------------------------------------------------------------------------------ recipes


def recipe(*lines: str, models: Sequence[str] = ("a", "b")) -> Case:
    """A recipe of two models, with further lines."""
    text = ["models:", *(f"  - model: {model}" for model in models), *lines]

    def run() -> None:
        Path("recipe.yml").write_text("\n".join(text))
        ml.run_recipe("recipe.yml", "merged")

    return run


case("recipe-yaml")(recipe("merge_method: [linear"))
case("recipe-folder")(lambda: ml.run_recipe(".", "merged"))
case("recipe-missing")(recipe())
case("recipe-field")(recipe("merge_metod: linear"))
case("recipe-twice")(recipe("merge_method: linear", "merge_method: ties"))
case("recipe-kind")(recipe("merge_method: linear", "parameters: 0.5"))
case("recipe-method")(recipe("merge_method: linea"))
case("recipe-models")(recipe("merge_method: linear", models=["a", "[b, c]"]))
case("recipe-partial")(recipe("    parameters: {weight: 0.5}", "merge_method: linear"))
case("recipe-name")(recipe("merge_method: linear", "---", "merge_method: linear"))
case("recipe-passthrough")(recipe("merge_method: passthrough"))
case("recipe-stacked")(recipe("merge_method: passthrough", "slices: []", models=[]))

# ------------------------------------------------------------------------------- merging with data

NORMS = {"digits": ml.scale(nn.LayerNorm(4).state_dict(), 1.1)}
POINTS = {"digits": torch.rand(6, 4)}

case("no-data")(lambda: adapt("adamerging", data=None))
case("features")(lambda: adapt("adamerging", data={"digits": torch.rand(6, 4)}, model=Features()))
case("no-head")(lambda: adapt("adamerging", heads={"digits": nn.Identity()}))
case("no-layer")(lambda: adapt("symerge"))
case("no-matrix")(lambda: adapt("adarank", is_matrix=lambda key, tensor: False))
case("no-linear")(lambda: ml.adapt("esm", NORMS, pretrained=nn.LayerNorm(4), data=POINTS))
case("no-expert")(lambda: adapt("regmean", data={"animals": torch.rand(6, 4)}))
case("no-labels")(lambda: adapt("greedy_soup", data={"digits": torch.rand(6, 4)}))
case("label")(lambda: adapt("multitask", data={"digits": (torch.rand(2, 4), torch.tensor([1, 3]))}))
case("does-not-run")(lambda: adapt("adamerging", data={"digits": torch.rand(6, 5)}))
case("head-kind")(lambda: adapt("adamerging", heads={"digits": torch.relu, "letters": nn.ReLU()}))
case("head-not-finite")(lambda: adapt("adamerging", heads=heads(constant=torch.inf)))
case("head-rows")(lambda: adapt("adamerging", heads=heads(nn.Flatten(0))))
case("one-class")(lambda: adapt("adamerging", heads=heads(width=1)))
case("batches")(lambda: adapt("adamerging", data={"digits": [torch.rand(6, 4), torch.rand(6, 3)]}))
case("loss-not-finite")(lambda: adapt("adamerging", transform=lambda x: x / 0))
case("result-not-finite")(lambda: adapt("surgery", learning_rate=1e30, steps=3))
case("data-not-finite")(lambda: adapt("adamerging", data={"digits": torch.full((6, 4), torch.nan)}))


def heads(*further: nn.Module, width: int = 2, constant: float = 1.0) -> dict[str, nn.Module]:
    """Heads of both tasks: a linear layer of constant weights, and what follows it."""
    layer = nn.Linear(3, width)
    nn.init.constant_(layer.weight, constant)
    return dict.fromkeys(("digits", "letters"), nn.Sequential(layer, *further))


class Features(nn.Linear):
    """A model that returns features, as those of Hugging Face without a head."""

    def __init__(self) -> None:
        super().__init__(4, 3)

    def forward(self, x: Tensor) -> Any:
        return SimpleNamespace(pooler_output=super().forward(x))

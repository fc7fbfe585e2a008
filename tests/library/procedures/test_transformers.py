"""Models of Hugging Face: dictionaries of inputs, outputs, heads that differ, tied weights."""

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

import mergelib as ml
from mergelib.activations import layer_inputs
from mergelib.procedures.fisher import diagonal_fisher
from mergelib.procedures.regmean import layer_grams

transformers = pytest.importorskip("transformers")

METHODS: dict[str, dict[str, Any]] = {
    "esm": {},
    "fisher": {},
    "regmean": {},
    "regmean_plusplus": {},
    "adamerging": {"steps": 2},
    "adarank": {"steps": 2},
    "frank_wolfe": {"steps": 2},
    "surgery": {"steps": 2, "rank": 2},
    "symerge": {"steps": 2},
}
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
BERT = {**SIZES, "vocab_size": 20, "intermediate_size": 24, "max_position_embeddings": 12}
GPT2 = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 20, "n_positions": 12}

pytestmark = pytest.mark.filterwarnings("ignore:the model's examples cannot be vectorised")


def bert(classes: int, seed: int) -> Any:
    torch.manual_seed(seed)
    config = transformers.BertConfig(**BERT, num_labels=classes)
    return transformers.BertForSequenceClassification(config).eval()


def gpt2(seed: int) -> Any:
    torch.manual_seed(seed)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)).eval()


def batch(count: int, length: int, classes: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(20, (count, length), generator=generator)
    labels = torch.randint(classes, (count,), generator=generator)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels}


def loader(classes: int, seed: int = 0) -> list[dict[str, Tensor]] | Any:
    """Batches of different lengths, as a collator makes them."""
    batches = [batch(3, 4, classes, seed), batch(2, 7, classes, seed + 1)]
    return DataLoader(batches, batch_size=None)  # type: ignore[arg-type]


def texts(seed: int = 0) -> Any:
    """Batches of a causal language model, whose labels repeat the tokens."""
    batches = [batch(3, 4, 2, seed), batch(2, 7, 2, seed + 1)]
    batches = [{**each, "labels": each["input_ids"]} for each in batches]
    return DataLoader(batches, batch_size=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", METHODS)
def test_bert_with_heads_of_two_and_three_classes(method: str) -> None:
    models = {"two": bert(2, 1), "three": bert(3, 2)}
    base = bert(2, 0).bert
    data = {"two": loader(2), "three": loader(3)}

    experts = {task: model.bert for task, model in models.items()}
    heads = {task: model.classifier for task, model in models.items()}
    made = ml.adapt(method, experts, pretrained=base, heads=heads, data=data, **METHODS[method])

    base.load_state_dict(made.state)
    assert not torch.equal(made.state["pooler.dense.weight"], experts["two"].pooler.dense.weight)


@pytest.mark.parametrize("method", METHODS)
def test_classifiers_merged_but_for_their_heads(method: str) -> None:
    experts = {"two": bert(2, 1), "three": bert(3, 2)}
    base = bert(2, 0)
    heads = {task: model.classifier for task, model in experts.items()}
    base.classifier = nn.Identity()

    made = ml.adapt(
        method, experts, pretrained=base, heads=heads, include="bert.*",
        data={"two": loader(2), "three": loader(3)}, **METHODS[method],
    )  # fmt: skip

    base.load_state_dict(made.state)
    assert made.state.keys() == base.state_dict().keys()


def test_the_rest_is_the_base() -> None:
    experts = {"a": bert(2, 1), "b": bert(2, 2)}
    base = bert(2, 0)
    data = {"a": loader(2), "b": loader(2, 5)}
    made = ml.adapt("fisher", experts, pretrained=base, data=data, exclude="*.embeddings.*")
    for key, value in base.state_dict().items():
        if key.endswith("weight") and "LayerNorm" not in key:
            assert torch.equal(made.state[key], value) == ("embeddings" in key), key


@pytest.mark.parametrize("method", sorted({*METHODS} - {"symerge"}))  # it needs heads
def test_gpt2_with_tied_embeddings(method: str) -> None:
    base, experts = gpt2(0), {"a": gpt2(1), "b": gpt2(2)}
    data = {"a": texts(), "b": texts(3)}

    made = ml.adapt(method, experts, pretrained=base, data=data, **METHODS[method])

    base.load_state_dict(made.state)
    names = ("transformer.wte.weight", "lm_head.weight")
    first, second = (made.state[name] for name in names)
    assert first.data_ptr() == second.data_ptr()
    assert not torch.equal(first, gpt2(0).state_dict()[names[0]])


def test_files_hold_a_tied_weight_once(tmp_path: Any) -> None:
    base, data = gpt2(0), {"a": texts()}
    states = {}
    for name, model in (("base", base), ("a", gpt2(1)), ("b", gpt2(2))):
        state = model.state_dict()
        del state["lm_head.weight"]
        ml.save_state_dict(state, tmp_path / f"{name}.safetensors")
        states[name] = tmp_path / f"{name}.safetensors"
    experts = {"a": states["a"], "b": states["b"]}
    options: dict[str, Any] = {"model": base, "data": data, "steps": 2}
    streamed = ml.adapt("frank_wolfe", experts, pretrained=states["base"], **options).state
    whole = {"a": gpt2(1), "b": gpt2(2)}
    memory = ml.adapt("frank_wolfe", whole, pretrained=base, **options).state
    assert all(torch.equal(streamed[key], memory[key]) for key in memory)


def test_ties_that_an_expert_broke_are_named() -> None:
    broken = {key: value.clone() for key, value in gpt2(1).state_dict().items()}
    broken["lm_head.weight"] += 1
    message = "the model ties 'lm_head.weight' to 'transformer.wte.weight', but in b they differ"
    with pytest.raises(ValueError, match=message):
        ml.adapt("regmean", {"a": gpt2(0), "b": broken}, pretrained=gpt2(0), data={"a": texts()})


def test_the_loss_is_the_models_own() -> None:
    """Also of a loader with padding, against the model's losses weighted by their tokens."""
    base = gpt2(0)
    made = ml.adapt(
        "frank_wolfe", [gpt2(1), gpt2(2)], pretrained=base, data={"t": texts()}, steps=1
    )
    total = count = 0.0
    for each in texts():
        tokens = each["input_ids"][:, 1:].numel()
        total += base(**each).loss.item() * tokens
        count += tokens
    assert made.history["loss"][0] == pytest.approx(total / count, rel=1e-5)


def test_padding_changes_nothing() -> None:
    """Statistics of examples of one length, and of the same ones padded beside longer ones."""
    model = bert(2, 0)
    state, short = model.state_dict(), batch(4, 5, 2)
    longer = {
        name: F.pad(x, (0, 3)) if x.dim() == 2 else x
        for name, x in short.items()
        if name != "labels"
    }
    inputs = {name: x for name, x in short.items() if name != "labels"}
    for one, other in (
        (layer_grams(model, state, inputs), layer_grams(model, state, longer)),
        (layer_inputs(model, inputs), layer_inputs(model, longer)),
        *[tuple(diagonal_fisher(model, state, None, x, short["labels"]) for x in (inputs, longer))],
    ):
        for key in one:
            torch.testing.assert_close(one[key], other[key], rtol=1e-4, atol=1e-6)


def test_fisher_of_bert_is_the_loop() -> None:
    model, examples = bert(3, 0), batch(3, 5, 3)
    labels = examples.pop("labels")
    found = diagonal_fisher(model, model.state_dict(), None, examples, labels)
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for i, label in enumerate(labels):
        logits = model(**{name: x[i : i + 1] for name, x in examples.items()}).logits
        loss = F.cross_entropy(logits, label[None])
        for (name, _), gradient in zip(
            model.named_parameters(),
            torch.autograd.grad(loss, list(model.parameters())),
            strict=True,
        ):
            total[name] += gradient.square() / len(labels)
    for name, expected in total.items():
        torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=1e-8)


class Stubborn(nn.Module):
    """A model that looks at its values, which vmap cannot trace."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(x if x.sum() > 0 else -x)
        return output


def test_a_loop_takes_over_where_vmap_fails_and_says_so_once() -> None:
    torch.manual_seed(0)
    model, x, y = Stubborn(), torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = diagonal_fisher(model, model.state_dict(), None, x, y, batch_size=2)
    (warning,) = (each for each in caught if "one by one" in str(each.message))
    assert "data-dependent" in str(warning.message)
    signs = x.sum(1, keepdim=True).sign()
    plain = diagonal_fisher(model.layer, model.layer.state_dict(), None, x * signs, y)
    torch.testing.assert_close(found["layer.weight"], plain["weight"])


def test_regmean_solves_gpt2s_transposed_layers_and_averages_tied_ones() -> None:
    base, experts = gpt2(0), {"a": gpt2(1), "b": gpt2(2)}
    data = {"a": texts(), "b": texts(3)}
    merged = ml.adapt(
        "regmean", experts, pretrained=base, data=data, off_diagonal=1.0, ridge=0.0
    ).state
    key = "transformer.h.0.attn.c_attn.weight"
    rows = {
        task: torch.cat(
            [
                layer_inputs(model, {k: x for k, x in b.items() if k != "labels"})[key]
                for b in data[task]
            ]
        ).double()
        for task, model in experts.items()
    }
    states = {task: model.state_dict() for task, model in experts.items()}
    gap = sum(
        ((rows[task] @ (merged[key] - states[task][key]).double()).square().sum() / len(rows[task]))
        for task in experts
    )
    mean = (states["a"][key] + states["b"][key]) / 2
    plain = sum(
        ((rows[task] @ (mean - states[task][key]).double()).square().sum() / len(rows[task]))
        for task in experts
    )
    assert gap < plain
    average = ml.merge("average", states)
    assert torch.allclose(merged["lm_head.weight"], average["lm_head.weight"])


def test_features_without_a_head_are_refused() -> None:
    experts = [bert(2, 1).bert, bert(2, 2).bert]
    with pytest.raises(ValueError, match="features instead of logits: pass heads="):
        ml.adapt("adamerging", experts, pretrained=bert(2, 0).bert, data={"t": loader(2)})

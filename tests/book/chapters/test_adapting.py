"""What chapter 20 measures: against definitions, and cases with a known answer."""

import pytest
import torch
from torch import nn

from mergebook.chapters import adapting
from mergebook.lab.comparison import examples_of
from mergebook.suites.zoo import Zoo
from mergelib.evaluation.loops import evaluate
from mergelib.merging import merge
from mergelib.procedures.fisher import diagonal_fisher


def test_judge_agrees_with_evaluation(tiny_zoo: Zoo) -> None:
    scores = adapting.judge(tiny_zoo, tiny_zoo.pretrained)
    table = evaluate(
        tiny_zoo.model, tiny_zoo.pretrained, tiny_zoo.heads, tiny_zoo.suite, autocast=True
    )
    assert scores["accuracy"].tolist() == pytest.approx(table["accuracy"].tolist())
    assert (scores["entropy"] > 0).all()


def test_judge_takes_heads_that_replace_the_zoos(tiny_zoo: Zoo) -> None:
    name = next(iter(tiny_zoo.heads))
    flat = nn.Linear(16, 5)
    nn.init.zeros_(flat.weight)
    nn.init.zeros_(flat.bias)
    scores = adapting.judge(tiny_zoo, tiny_zoo.pretrained, {name: flat}, [name])
    assert scores["entropy"].tolist() == pytest.approx([torch.tensor(5.0).log().item()])


def test_trials_note_what_was_given(tiny_zoo: Zoo) -> None:
    trials = adapting.Trials(tiny_zoo)
    state = trials.merge("tuned", "task_arithmetic", labels=7, scale=0.5)
    trials.adapt("mended", "surgery", examples_of(tiny_zoo, 20), start=state, steps=5)
    table = trials.table()
    assert table["labels"].to_dict() == {"tuned": 7, "mended": 0}
    assert table["sees"].to_dict() == {"tuned": "nothing", "mended": "pictures"}
    expected = adapting.judge(tiny_zoo, state)["accuracy"].mean()
    assert table.loc["tuned", "accuracy"] == pytest.approx(expected)


def test_one_example_is_its_own_batch(tiny_zoo: Zoo) -> None:
    task, zoo = next(iter(tiny_zoo.experts)), tiny_zoo
    inputs = zoo.suite.tasks[task].train.inputs[:1]
    draws = torch.Generator().manual_seed(0)
    examples, batch = adapting.batch_fisher(zoo, task, inputs, draws)
    assert torch.allclose(examples, batch, rtol=1e-3, atol=1e-6 * float(batch.max()))


def test_shares_sum_to_one_and_give_the_fisher_merge(tiny_zoo: Zoo) -> None:
    zoo = tiny_zoo
    information = {
        task: diagonal_fisher(
            zoo.model,
            expert,
            zoo.heads[task],
            zoo.suite.tasks[task].train.inputs[:8],
            generator=torch.Generator().manual_seed(0),
            transform=zoo.suite.transforms[task],
        )
        for task, expert in zoo.experts.items()
    }
    shares = adapting.fisher_shares(information)
    trials = adapting.Trials(zoo)
    merged = trials.adapt("Fisher", "fisher", {}, statistics=information).state
    for key, share in shares.items():
        assert torch.allclose(share.sum(0), torch.ones_like(share[0]))
        stack = torch.stack([expert[key] for expert in zoo.experts.values()])
        assert torch.allclose((share * stack).sum(0), merged[key], atol=1e-5)


def test_an_expert_alone_makes_no_error_in_its_layers(tiny_zoo: Zoo) -> None:
    task = next(iter(tiny_zoo.experts))
    inputs = {name: part[0] for name, part in examples_of(tiny_zoo, 10).items()}
    average = merge("average", tiny_zoo.experts)
    states = {"own": tiny_zoo.experts[task], "average": average}
    errors = adapting.layer_errors(tiny_zoo, states, inputs)
    zeros = {key: torch.zeros_like(value) for key, value in average.items()}
    nothing = adapting.layer_errors(tiny_zoo, {"zeros": zeros}, inputs)
    assert nothing["zeros"].tolist() == pytest.approx([1.0] * len(errors))
    better = errors["average"].to_numpy() < errors["own"].to_numpy()
    assert better.sum() > len(better) / 2  # one expert of two is wholly wrong in the other


def test_a_shift_of_an_experts_own_features_is_none(tiny_zoo: Zoo) -> None:
    task = next(iter(tiny_zoo.experts))
    state = tiny_zoo.experts[task]
    head = adapting.mean_shift(tiny_zoo, state, task, tiny_zoo.suite.tasks[task].train.inputs[:20])
    moved = adapting.judge(tiny_zoo, state, {task: head}, [task])["accuracy"].tolist()
    assert moved == adapting.judge(tiny_zoo, state, tasks=[task])["accuracy"].tolist()
    same = {name: nn.Identity() for name in tiny_zoo.experts}
    bias = adapting.representation_bias(tiny_zoo, state, same)
    assert bias.to_numpy()[0].tolist() == [0, 0]
    assert bias["before"].tolist() == bias["after"].tolist()


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("stem.0.weight", "stem"),
        ("blocks.2.attn.qkv.weight", "block 2 attention"),
        ("blocks.0.fc1.weight", "block 0 MLP"),
    ],
)
def test_places(key: str, expected: str) -> None:
    assert adapting.place(key) == expected


def test_differences_over_seeds_have_both_intervals() -> None:
    table = adapting.over_seeds_and_tasks({"gain": ("cart", "average")}, "vision8-procedures")
    points, _, low, high = table.to_numpy()[0]
    assert low < points < high
    assert list(table) == ["points", "half_width", "low", "high"]

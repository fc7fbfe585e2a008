"""What chapter 50 computes: small trained networks of three families, grown in every way.

A *case* is a family: a source that has been trained for seconds, larger networks as they begin, and
the data. The GPT reads texts of a random Markov chain, the others pictures of a task.
"""

from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor, nn

from mergelib.messages.brief import Brief
from mergelib.records.results import load_result, load_table
from mergelib.sail import grow
from mergelib.sail.growth.width import Widening
from mergelib.structure import structure_of
from mergelib.studies.papers.sail.larger.kept import Build, picture_networks, ways
from mergelib.testbed import models
from mergelib.testbed.tasks import Task, cross_entropy
from mergelib.training import make_optimiser, shuffled, train

SYMBOLS = 12
FILES = ("glyphs8-kept", "tinyshakespeare-kept")
Examples = tuple[Tensor, Tensor]  # inputs of the model, labels


@dataclass(frozen=True, repr=False)
class Case(Brief):
    """A family of networks.

    Attributes:
        source: the small network, trained.
        build: a larger one at its random start; takes whether it is wider, and whether deeper.
        train: examples that the source was trained on.
        test: examples for the losses.
    """

    source: nn.Module
    build: Build
    train: Examples
    test: Examples

    @torch.no_grad()
    def logits(self, model: nn.Module) -> Tensor:
        """On the test inputs, with statistics at rest."""
        logits: Tensor = model.eval()(self.test[0])
        return logits

    def loss(self, model: nn.Module) -> float:
        """Test cross-entropy, in nats."""
        return float(cross_entropy(self.logits(model), self.test[1]))


def cases(task: Task, *, steps: int, seed: int = 0) -> dict[str, Case]:
    """The three families, each with a source trained for some steps (the GPT for four times that).

    Args:
        task: of pictures, for the MLP and the ResNet; the first 200 of its test pictures judge.
        steps: of 64 examples.
        seed: draws the starts, the texts and the order of examples.
    """
    networks = picture_networks(len(task.class_names), (2, 4))
    pictures = [
        (task.transform(split.inputs[:count]), split.labels[:count])
        for split, count in ((task.train, None), (task.test, 200))
    ]
    texts = markov_texts(512, seed=seed), markov_texts(256, seed=seed, text_seed=1)

    def language(wide: bool, deep: bool) -> nn.Module:
        return gpt(64 if wide else 32, 4 if deep else 2, 8 if wide else 4)

    found = {}
    for name, build, (training, test), factor in (
        *((name, build, pictures, 1) for name, build in networks.items()),
        ("GPT", language, texts, 4),
    ):
        torch.manual_seed(seed)
        source = build(False, False)
        train_on(source, training, steps=factor * steps, seed=seed, learning_rate=3e-3)
        found[name] = Case(source, build, training, test)
    return found


def gpt(width: int, depth: int, heads: int) -> nn.Module:
    """A GPT over the symbols of `markov_texts`, at its random start."""
    return models.GPT(width, depth, heads, vocabulary=SYMBOLS, context=32)


def markov_texts(count: int, *, seed: int, text_seed: int = 0) -> Examples:
    """Texts of a random chain in which two symbols decide on the next: ``(count, 32)``, and labels.

    Args:
        count: how many.
        seed: draws the chain.
        text_seed: draws the texts.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = torch.full((SYMBOLS, SYMBOLS, SYMBOLS), 0.1)
    chain = torch._standard_gamma(shape, generator=generator)
    generator.manual_seed(1000 * seed + text_seed + 1)
    text = list(torch.randint(SYMBOLS, (2, count), generator=generator))
    for _ in range(31):
        text.append(torch.multinomial(chain[text[-2], text[-1]], 1, generator=generator)[:, 0])
    whole = torch.stack(text, 1)
    return whole[:, :-1], whole[:, 1:]


def train_on(
    model: nn.Module, examples: Examples, *, steps: int, seed: int, learning_rate: float
) -> None:
    """Train a model in place with AdamW, on batches of 64."""
    inputs, labels = examples
    batches = shuffled(len(labels), 64, torch.Generator().manual_seed(seed), steps=steps)
    train(
        model.train(),
        batches,
        lambda rows: cross_entropy(model(inputs[rows]), labels[rows]),
        make_optimiser(model, "adamw", learning_rate),
    )


def growths(case: Case, *, seed: int = 0) -> pd.DataFrame:
    """A case grown by every scheme, once wider and once deeper.

    Returns:
        Rows of ``grown`` ("wider" or "deeper"), ``scheme``, ``change`` (the largest of a logit,
        over the largest logit), ``loss``, and ``kept``: the share of what the source has learned,
        (random − loss) / (random − source). Schemes that do not fit the family are left out.
    """
    expected, learned = case.logits(case.source), case.loss(case.source)
    rows = []
    for grown, width, depth, fresh, model in ways(
        case.source, case.build, seed, ("wider", "deeper")
    ):
        start, loss = case.loss(fresh), case.loss(model)
        change = (case.logits(model) - expected).abs().max() / expected.abs().max()
        kept = (start - loss) / (start - learned)
        rows.append((grown, width or depth, float(change), loss, kept))
    return pd.DataFrame(rows, columns=["grown", "scheme", "change", "loss", "kept"])


def measured(part: str) -> pd.DataFrame:
    """A table of the study ``kept``, of pictures and text together.

    Args:
        part: ``"starts"`` or ``"trained"``; the latter gets ``gain``, the loss of as many FLOPs
            of training less that of the learned start, and ``price``, what learning costs over
            ``further`` steps of training.
    """
    tables = []
    for name in FILES:
        table = load_table(name, part)
        if part == "trained":
            further = load_result(name)["provenance"]["settings"]["further"]
            gain, price = table["plain"] - table["after"], table["extra"] / further
            table = table.assign(gain=gain, price=price)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def traps(case: Case) -> pd.Series:
    """What forgetting one thing costs when a GPT is made wider by copies.

    Returns:
        The largest change of a logit over the largest logit: with all care, without the factor of
        queries and keys, with the norm before the tied table treated as any other (all three twice
        as wide), and one and a half times as wide.
    """
    source = case.source
    double, uneven = gpt(64, 2, 4), gpt(48, 2, 4)
    careful = grow(source, double)
    sharp = {key: value.clone() for key, value in careful.items()}
    for key, value in sharp.items():
        if ".qkv." in key:
            value[: 2 * len(value) // 3] *= 2**0.25  # queries and keys
    loud = {key: 2 * v if key.startswith("norm.") else v for key, v in careful.items()}
    sizes = {name: group.size for name, group in structure_of(source).groups.items()}
    widening = Widening(structure_of(uneven), sizes, "replicate")
    copied = {key: widening.apply(key, value) for key, value in source.state_dict().items()}
    expected = case.logits(source)
    changes = {}
    for name, model, state in (
        ("with all care", double, careful),
        ("no factor for queries and keys", double, sharp),
        ("norm before the tied table as any other", double, loud),
        ("uneven copies, 32 to 48", uneven, copied),
    ):
        model.load_state_dict(state)
        changes[name] = float((case.logits(model) - expected).abs().max() / expected.abs().max())
    return pd.Series(changes)


def parting(case: Case, *, steps: int, every: int = 10, seed: int = 0) -> pd.DataFrame:
    """A GPT twice as wide, trained on from three starts.

    Returns:
        Rows of ``start``, ``step``, ``rank`` (of the stream before the last norm, over all test
        inputs, by singular values above a thousandth of the largest), ``apart`` (distance of the
        two copies of the token table over the table's norm) and test ``loss``.
    """
    rows: list[tuple[str, int, int, float, float]] = []
    for start, options in (
        ("copies", {"width": "replicate"}),
        ("copies with noise", {"width": "replicate", "noise": 0.3}),
        ("mean padding", {"width": "mean"}),
    ):
        torch.manual_seed(seed)
        model = case.build(True, False)
        generator = torch.Generator().manual_seed(seed)
        model.load_state_dict(grow(case.source, model, generator=generator, **options))
        for step in range(0, steps + 1, every):
            if step:
                train_on(model, case.train, steps=every, seed=seed + step, learning_rate=1e-3)
            first, second = model.get_parameter("token_embed.weight").detach().chunk(2, 1)
            apart = float((first - second).norm() / torch.cat([first, second], 1).norm())
            rows.append((start, step, stream_rank(model, case.test[0]), apart, case.loss(model)))
    return pd.DataFrame(rows, columns=["start", "step", "rank", "apart", "loss"])


@torch.no_grad()
def stream_rank(model: nn.Module, inputs: Tensor) -> int:
    """How many directions a GPT's residual stream takes before the last norm."""
    streams: list[Tensor] = []
    norm = model.get_submodule("norm")
    hook = norm.register_forward_pre_hook(lambda _, args: streams.append(args[0].flatten(0, 1)))
    model.eval()(inputs)
    hook.remove()
    values = torch.linalg.svdvals(streams[0].double())
    return int((values > 1e-3 * values[0]).sum())

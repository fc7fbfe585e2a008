"""What chapter 50 computes: small trained networks of three families, grown in every way.

A *case* is a family: a source that has been trained for seconds, larger networks as they begin, and
the data. The GPT reads texts of a random Markov chain, the others pictures of a task.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, partial
from typing import get_args

import pandas as pd
import torch
from torch import Tensor, nn

from mergebook.sail.measure.kept import Build, picture_networks, ways
from mergebook.sail.measure.training import by_adam
from mergebook.suites import models
from mergelib.evaluation.tasks import Split, Task, cross_entropy
from mergelib.messages.brief import Brief
from mergelib.sail import grow
from mergelib.sail.growth.width import Use, Widening
from mergelib.structure import structure_of

SYMBOLS = 12
PARTED = ("copies", "copies with noise", "mean padding", "zero padding")  # starts of `parting`
TARGET = 0.1  # nats below the source, to which its steps are counted
Examples = tuple[Tensor, Tensor]  # inputs of the model, labels
_trained_at = partial(by_adam, optimiser="adamw", batch_size=64)  # states after some steps


@dataclass(frozen=True, repr=False)
class Case(Brief):
    """A family of networks."""

    source: nn.Module  # the small network, trained
    build: Build  # a larger one at its random start; takes whether it is wider, and whether deeper
    train: Examples  # examples that the source was trained on
    test: Examples  # examples for the losses

    @torch.no_grad()
    def logits(self, model: nn.Module) -> Tensor:
        """On the test inputs, with statistics at rest."""
        logits: Tensor = model.eval()(self.test[0])
        return logits

    def change(self, model: nn.Module) -> float:
        """The largest change of a logit from the source's, over the largest of these."""
        expected = self.logits(self.source)
        return float((self.logits(model) - expected).abs().max() / expected.abs().max())

    def loss(self, model: nn.Module) -> float:
        """Test cross-entropy, in nats."""
        return float(cross_entropy(self.logits(model), self.test[1]))


def cases(task: Task, *, steps: int, seed: int = 0) -> dict[str, Case]:
    """The three families, each with a source trained for these steps (the GPT for four times)."""
    networks = picture_networks(len(task.class_names), (2, 4))
    pictures = [
        (task.transform(split.inputs[:count]), split.labels[:count])
        for split, count in ((task.train, None), (task.test, 200))
    ]
    training, test = pictures
    found = {name: _trained(build, training, test, steps, seed) for name, build in networks.items()}
    return {**found, "GPT": language_case(steps=4 * steps, seed=seed)}


@cache
def language_case(*, steps: int, seed: int = 0) -> Case:
    """The GPT of `cases`, its source trained for some steps."""

    def build(wide: bool, deep: bool) -> nn.Module:
        return gpt(64 if wide else 32, 4 if deep else 2, 8 if wide else 4)

    texts = markov_texts(512, seed=seed), markov_texts(256, seed=seed, text_seed=1)
    return _trained(build, *texts, steps, seed)


def _trained(build: Build, training: Examples, test: Examples, steps: int, seed: int) -> Case:
    torch.manual_seed(seed)
    source = build(False, False)
    source.load_state_dict(_trained_at(source, Split(*training), [steps], 3e-3, seed=seed)[steps])
    return Case(source, build, training, test)


def gpt(width: int, depth: int, heads: int) -> nn.Module:
    """A GPT over the symbols of `markov_texts`, at its random start."""
    return models.GPT(width, depth, heads, vocabulary=SYMBOLS, context=32)


def markov_texts(count: int, *, seed: int, text_seed: int = 0) -> Examples:
    """Texts of a random chain in which two symbols decide on the next, ``(count, 32)``; labels."""
    generator = torch.Generator().manual_seed(seed)
    shape = torch.full((SYMBOLS, SYMBOLS, SYMBOLS), 0.1)
    chain = torch._standard_gamma(shape, generator=generator)
    generator.manual_seed(1000 * seed + text_seed + 1)
    text = list(torch.randint(SYMBOLS, (2, count), generator=generator))
    for _ in range(31):
        text.append(torch.multinomial(chain[text[-2], text[-1]], 1, generator=generator)[:, 0])
    whole = torch.stack(text, 1)
    return whole[:, :-1], whole[:, 1:]


def growths(case: Case, *, seed: int = 0) -> pd.DataFrame:
    """A case grown by every scheme, once wider and once deeper.

    Rows of ``grown`` ("wider" or "deeper"), ``scheme``, ``change`` (the largest of a logit, over
    the largest logit), ``loss``, and ``kept``: the share of what the source has learned, (random −
    loss) / (random − source). Schemes that do not fit the family are left out.
    """
    learned = case.loss(case.source)
    rows = []
    ways_of = ways(case.source, case.build, seed, ("wider", "deeper"))
    for grown, width, depth, fresh, model in ways_of:
        start, loss = case.loss(fresh), case.loss(model)
        kept = (start - loss) / (start - learned)
        rows.append((grown, width or depth, case.change(model), loss, kept))
    return pd.DataFrame(rows, columns=["grown", "scheme", "change", "loss", "kept"])


def parting(seeds: Iterable[int], *, trained: int, steps: int = 40, every: int = 2) -> pd.DataFrame:
    """A GPT twice as wide, trained on from the starts of `PARTED`, on fresh texts of its chain.

    Rows of ``seed``, ``start``, ``step``, ``change`` (the largest of a logit from the source's,
    over the largest logit), ``rank`` (of the stream before the last norm, over all test inputs, by
    singular values above a thousandth of the largest), ``apart`` (distance of the two halves of the
    token table over the table's norm; of copies, how far they are from each other) and ``gain``:
    the source's test loss less one's own, in nats.
    """
    rows = []
    for seed in seeds:
        case = language_case(steps=trained, seed=seed)
        fresh = Split(*markov_texts(2048, seed=seed, text_seed=2))
        expected, learned = case.logits(case.source), case.loss(case.source)
        for start in PARTED:
            model = _parted(case, start, seed)
            states = _trained_at(model, fresh, range(every, steps + 1, every), 1e-3, seed=seed)
            for step, state in {0: model.state_dict(), **states}.items():
                model.load_state_dict(state)
                logits, rank = stream_rank(model, case.test[0])
                table = state["token_embed.weight"]
                first, second = table.chunk(2, 1)
                change = float((logits - expected).abs().max() / expected.abs().max())
                row = {"seed": seed, "start": start, "step": step, "change": change}
                row |= {"rank": rank, "apart": float((first - second).norm() / table.norm())}
                rows.append(row | {"gain": learned - float(cross_entropy(logits, case.test[1]))})
    return pd.DataFrame(rows)


def _parted(case: Case, start: str, seed: int) -> nn.Module:
    """The larger GPT at one of `PARTED`; what is new is the same draw in all."""
    torch.manual_seed(seed)
    model = case.build(True, False)
    generator = torch.Generator().manual_seed(seed)
    states = {
        "copies": lambda: grow(case.source, model),
        "copies with noise": lambda: grow(case.source, model, noise=0.3, generator=generator),
        "mean padding": lambda: grow(case.source, model, width="mean"),
        "zero padding": lambda: zero_padded(case.source, model),
    }
    model.load_state_dict(states[start]())
    return model


def zero_padded(source: nn.Module, target: nn.Module) -> dict[str, Tensor]:
    """A pre-norm transformer made wider with zeros, with no regard to its norms."""
    sizes = {name: group.size for name, group in structure_of(source).groups.items()}
    structure, weights = structure_of(target), source.state_dict()
    zeros = {
        (name, use): torch.eye(group.size, sizes[name], dtype=torch.float64)
        for name, group in structure.groups.items()
        if group.norm == "layer"
        for use in get_args(Use)
    }
    widening = Widening(structure, sizes, "mean").replaced(zeros)
    return {
        key: torch.where(widening.new(key), start, widening.apply(key, weights[key]))
        for key, start in target.state_dict().items()
    }


@torch.no_grad()
def stream_rank(model: nn.Module, inputs: Tensor) -> tuple[Tensor, int]:
    """A GPT's logits, and how many directions its residual stream takes before the last norm."""
    streams: list[Tensor] = []
    norm = model.get_submodule("norm")
    hook = norm.register_forward_pre_hook(lambda _, args: streams.append(args[0].flatten(0, 1)))
    logits: Tensor = model.eval()(inputs)
    hook.remove()
    stream = streams[0].double()
    squares = torch.linalg.eigvalsh(stream.T @ stream)  # of singular values
    return logits, int((squares > 1e-6 * squares[-1]).sum())

"""A small trained GPT that chapters grow: its source, larger networks, and its data.

It reads texts of a random Markov chain.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from mergebook.sail.measure.kept import Build
from mergebook.sail.measure.training import by_adam
from mergebook.suites import models
from mergelib.evaluation.tasks import Split
from mergelib.messages.brief import Brief

SYMBOLS = 12
Examples = tuple[Tensor, Tensor]  # inputs of the model, labels


@dataclass(frozen=True, repr=False)
class Case(Brief):
    """A trained network and what it is compared on."""

    source: nn.Module  # the small network, trained
    build: Build  # a larger one with initial weights; takes whether it is wider, whether deeper
    train: Examples  # examples that the source was trained on
    test: Examples  # examples for the logits

    @torch.no_grad()
    def logits(self, model: nn.Module) -> Tensor:
        """Return the logits on the test inputs, in evaluation mode."""
        logits: Tensor = model.eval()(self.test[0])
        return logits

    def change(self, model: nn.Module) -> float:
        """Return the largest change of a logit from the source's, over the largest of these."""
        expected = self.logits(self.source)
        return float((self.logits(model) - expected).abs().max() / expected.abs().max())


@cache
def language_case(*, steps: int, seed: int = 0) -> Case:
    """Return a GPT of width 32 trained for this number of steps, with its data."""

    def build(wide: bool, deep: bool) -> nn.Module:
        return gpt(64 if wide else 32, 4 if deep else 2, 8 if wide else 4)

    training, test = markov_texts(512, seed=seed), markov_texts(256, seed=seed, text_seed=1)
    torch.manual_seed(seed)
    source, options = build(False, False), {"optimiser": "adamw", "batch_size": 64}
    states = by_adam(source, Split(*training), [steps], 3e-3, seed=seed, **options)
    source.load_state_dict(states[steps])
    return Case(source, build, training, test)


def gpt(width: int, depth: int, heads: int) -> nn.Module:
    """Return a GPT over the symbols of `markov_texts` with initial weights."""
    return models.GPT(width, depth, heads, vocabulary=SYMBOLS, context=32)


def markov_texts(count: int, *, seed: int, text_seed: int = 0) -> Examples:
    """Return texts of a random chain of second order, ``(count, 32)``, and the next symbols."""
    generator = torch.Generator().manual_seed(seed)
    shape = torch.full((SYMBOLS, SYMBOLS, SYMBOLS), 0.1)
    chain = torch._standard_gamma(shape, generator=generator)
    generator.manual_seed(1000 * seed + text_seed + 1)
    text = list(torch.randint(SYMBOLS, (2, count), generator=generator))
    for _ in range(31):
        text.append(torch.multinomial(chain[text[-2], text[-1]], 1, generator=generator)[:, 0])
    whole = torch.stack(text, 1)
    return whole[:, :-1], whole[:, 1:]

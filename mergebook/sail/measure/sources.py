"""The two sources of a transfer, and the starts of a larger network that are made of them."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mergebook.sail.costs import loop_flops, mmd_flops
from mergebook.sail.measure.grounds import Unlabelled
from mergebook.sail.measure.rates import Rates, usual_rates
from mergebook.sail.measure.text import PAIRS
from mergebook.sail.measure.training import State
from mergebook.sail.measure.transfers import SMALL, TARGET, Transfer
from mergebook.suites.models import GPT
from mergelib.align import git_rebasin
from mergelib.evaluation.tasks import Split
from mergelib.hashing import stable_seed
from mergelib.messages.brief import Brief
from mergelib.problems.checks import check_choice
from mergelib.procedures import adapt
from mergelib.sail import grow
from mergelib.sail.divergences import median_distance, mmd_table, permutation_p
from mergelib.sail.growth.learning import Mode, learn_growth
from mergelib.sail.proximal import proximal_weights
from mergelib.statedict import lerp
from mergelib.training import seeded

LEARNING = 100  # steps in which maps are learned
ALONE = ("nearest", "farther")  # weights that take one source
NOISE = 0.05  # usually added to copies of units
TAUGHT = 0.5  # share of the teacher's answer in distilled labels


class Arm(NamedTuple):
    """How a start is made."""

    # γ: `theorem` (Theorem 3 by MMD²), `nearest` (the source with the least MMD² alone), `farther`,
    # `uniform`, `greedy` (the soup of Wortsman et al., 2022); none for scratch
    weights: str = ""
    width: str = "mean"  # a scheme of `grow`; none for a network as small as the source
    depth: str = "identity"
    mode: str = ""  # of `learn_growth`, where maps are learned; `published`: by LiGO
    noise: float = 0.0  # see `grow`
    matched: bool = False  # whether θ_2 is reordered to match θ_1
    distilled: bool = False  # whether training learns the nearest source's answers as well
    # random weights other than the usual ones: `published` (see `drawn_as_published`), `tuned`
    # (see `scaled`), or `alike` (those of the finished start redrawn, see `drawn_alike`)
    drawn: str = ""


ARMS = {
    "scratch": Arm(),
    "scratch, published": Arm(drawn="published"),
    "scratch, tuned": Arm(drawn="tuned"),
    "random, same scale": Arm("theorem", drawn="alike"),
    "nearest source": Arm("nearest"),
    "farther source": Arm("farther"),
    "own size": Arm("nearest", ""),
    "Net2Net": Arm("nearest", "replicate", noise=NOISE),
    "stack": Arm("nearest", depth="stack"),
    "bert2BERT": Arm("nearest", "aki", "stack_top", noise=NOISE),  # no trainings of its parts
    "LiGO": Arm("nearest", depth="stack", mode="alone"),
    "LiGO, published": Arm("nearest", depth="stack", mode="published"),
    "uniform": Arm("uniform"),
    "greedy soup": Arm("greedy"),
    "SAIL": Arm("theorem"),
    "SAIL, learned": Arm("theorem", "svd", "stack", mode="joint", noise=NOISE),
    "SAIL, matched": Arm("theorem", matched=True),
    "SAIL, distilled": Arm("theorem", distilled=True),
}


@dataclass(frozen=True, repr=False)
class Start(Brief):
    """What training begins with."""

    net: nn.Module  # the network, head included
    added: int = 0  # FLOPs that it has taken beside its sources
    sources: int = 0  # how many it has
    split: Split | None = None  # what it is trained on, where not the target's data as they are


class Sources:
    """The two sources of a transfer, trained when first needed, and all that is made of them."""

    def __init__(self, transfer: Transfer, start: str, size: str) -> None:
        check_choice("start", start, ("shared", "own"))
        check_choice("size", size, [name for name in transfer.builds if name != SMALL])
        self.transfer, self.kind, self.size = transfer, start, size
        described = transfer.described
        table = mmd_table(described)
        weights = proximal_weights(table[2, :2], table[:2, :2]).weights
        self.distances = {
            **{name: float(table[pair]) for name, pair in PAIRS.items()},
            "p": permutation_p(*described[:2], bandwidth=median_distance(described)),
            "gamma": float(weights[0]),
        }
        self.nearest = int(table[1, 2] < table[0, 2])

    @cached_property
    def nets(self) -> list[nn.Module]:
        return [self.transfer.source("shared", 0), self.transfer.source(self.kind, 1)]

    def allowed(self) -> list[str]:
        """Names of the arms that fit."""
        return [name for name, arm in ARMS.items() if not self.refusal(arm)]

    def check(self, names: Sequence[str], known: Mapping[str, Arm] = ARMS) -> None:
        for name in names:
            check_choice("arm", name, [*known])
            if refusal := self.refusal(known[name]):
                raise ValueError(f"arm {name!r} does not fit: {refusal}")

    def refusal(self, arm: Arm) -> str:
        """Why an arm does not fit, empty where it does."""
        if arm.drawn == "tuned" and not self.transfer.answers:
            return "only the scale of a GPT's random weights is tuned"
        if arm.matched and self.kind == "shared":
            return "sources that share their start need no matching"
        if not self.transfer.answers and (arm.distilled or arm.weights == "greedy"):
            return "the target has other classes than the sources"
        if arm.mode in get_args(Mode):
            if isinstance(self.transfer, Unlabelled):
                return "maps are learned by labels, of which the target has none"
            if not (self.transfer.answers or self.size == "half wider"):
                return "nothing to learn: no stage is wider, and none has two blocks to mix"
        elif not self.transfer.answers and arm.depth != "identity":
            return "a stage has no block to repeat but its first"
        if arm.width == "replicate" and self.size not in self.transfer.copied:
            return "a layer norm wants as many copies of every unit"
        return ""

    def rates(self, name: str) -> Rates:
        return usual_rates(self.transfer.name, self.kind, self.size, name)

    def start(self, arm: Arm, rates: Rates) -> Start:
        """The start of an arm; of the rates those of maps, and the scales of random weights."""
        transfer = self.transfer
        if not arm.weights:
            net = transfer.network(self.size, TARGET)
            if arm.drawn == "published":
                drawn_as_published(net, transfer.seed)
            elif arm.drawn == "tuned":
                scaled(net, rates)
            return Start(net)
        gammas, added = self._weights(arm)
        count = 1 if arm.weights in ALONE else 2
        if not arm.width:
            return Start(self.nets[self.nearest], added, count)
        net = transfer.network(self.size, TARGET)
        if arm.mode:
            state, flops = self._learned(net, arm, rates.maps, gammas)
            added += flops
        else:
            one, two = self._grown(net, arm)
            state = transfer.headed(net, lerp(two, one, gammas[0]))
        net.load_state_dict(state)
        if all(gammas) and not arm.mode:  # learned maps bring measured statistics
            added += transfer.measured_anew(net)
        if arm.drawn == "alike":
            drawn_alike(net, transfer.seed)
        split = None
        if arm.distilled:
            split, flops = self._taught()
            added += flops
        return Start(net, added, count, split)

    def costs(self, start: Start) -> dict[str, int]:
        """FLOPs of a start, as `arms` tells them."""
        sources = start.sources * self.transfer.schedule.source_steps
        sources *= self.transfer.step_flops(self.nets[0]) if sources else 0
        step = self.transfer.step_flops(start.net)
        return {"step_flops": step, "added_flops": start.added, "source_flops": sources}

    def _weights(self, arm: Arm) -> tuple[list[float], int]:
        """γ of both sources, and what it takes to find them."""
        described = self.transfer.described
        told = mmd_flops([len(rows) for rows in described], described[0].shape[1])
        if arm.weights in ALONE:
            second = self.nearest == (arm.weights == "nearest")
            return [1.0 - second, float(second)], told
        if arm.weights == "theorem":
            return [self.distances["gamma"], 1 - self.distances["gamma"]], told
        if arm.weights == "uniform":
            return [0.5, 0.5], 0
        return self._greedy(arm)

    def _greedy(self, arm: Arm) -> tuple[list[float], int]:
        net, choose = self.transfer.network(self.size, TARGET), self.transfer.choose
        experts = dict(zip(("first", "second"), self._grown(net, arm), strict=True))
        options: dict[str, Any] = {"model": net, "heads": {"target": nn.Identity()}}
        options["data"] = {"target": (self.transfer.transform(choose.inputs), choose.labels)}
        soup = adapt("greedy_soup", experts, pretrained=net.state_dict(), **options)
        passes = 2 * len(self.nets) - 1
        flops = self.transfer.forward_flops(net, passes * len(choose))
        return [float(weight) for weight in soup.coefficients["weight"]], flops

    def _grown(self, net: nn.Module, arm: Arm) -> list[State]:
        """Both sources in the larger network's shape."""
        options: dict[str, Any] = {"width": arm.width, "depth": arm.depth, "noise": arm.noise}
        return [
            grow(self.nets[0], net, state=source.state_dict(), generator=generator, **options)
            for source in self._matched(arm)
            for generator in [torch.Generator().manual_seed(self.transfer.seed)]
        ]

    def _matched(self, arm: Arm) -> list[nn.Module]:
        """Both sources, the second in the first one's order where the arm wants it."""
        one, two = self.nets
        if arm.matched:
            two = copy.deepcopy(two)
            two.load_state_dict(git_rebasin(one.state_dict(), two.state_dict(), one).state)
        return [one, two]

    def _learned(
        self, net: nn.Module, arm: Arm, rate: float, gammas: Sequence[float]
    ) -> tuple[State, int]:
        """Maps learned on the target's data, and the FLOPs of it; the head is mapped as well."""
        transfer, alone = self.transfer, arm.weights == "nearest"
        data = transfer.parts[TARGET]
        sources = [self.nets[self.nearest]] if alone else self._matched(arm)
        options: dict[str, Any] = {"learning_rate": rate, "seed": transfer.seed}
        options["batch_size"] = transfer.schedule.batch_size
        if arm.mode == "published":
            options["maps"] = "ligo"
        else:
            options |= {"mode": arm.mode, "width": arm.width, "noise": arm.noise}
            options |= {"weights": None if alone else gammas}
            options["depth"] = arm.depth if transfer.answers else "identity"  # no list can be mixed
        examples = transfer.transform(data.inputs), data.labels

        def learn(steps: int) -> State:
            return learn_growth(sources, net, examples, steps=steps, **options).state

        return learn(LEARNING), loop_flops(learn, LEARNING)

    def _taught(self) -> tuple[Split, int]:
        """The target's data with labels that are half the nearest source's answer."""
        transfer, data = self.transfer, self.transfer.parts[TARGET]
        teacher = self.nets[self.nearest]
        outputs = transfer.outputs(teacher, teacher.state_dict(), data)
        truth = F.one_hot(data.labels, outputs.shape[-1])
        labels: Tensor = TAUGHT * outputs.softmax(-1) + (1 - TAUGHT) * truth
        return Split(data.inputs, labels), transfer.forward_flops(teacher, len(data))


def drawn_as_published(net: nn.Module, seed: int) -> None:
    """Give a network random weights in place by the rules of its paper, where ours has others."""
    with seeded(stable_seed("drawn", seed)), torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, GPT):
                for name, weight in module.named_parameters():
                    if name.endswith(("attn.proj.weight", "fc2.weight")):
                        weight.div_(math.sqrt(2 * len(module.blocks)))


def scaled(net: nn.Module, rates: Rates) -> None:
    """Multiply a GPT's random weights in place: embeddings and all other matrices."""
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if weight.dim() > 1:
                weight.mul_(rates.embeddings if "embed" in name else rates.matrices)


def drawn_alike(net: nn.Module, seed: int) -> None:
    """Redraw all weights in place from normal laws with each tensor's own mean and deviation."""
    with seeded(stable_seed("drawn alike", seed)), torch.no_grad():
        for weight in net.parameters():
            mean, deviation = weight.mean(), weight.std(correction=0)
            weight.copy_(mean + deviation * torch.randn_like(weight))

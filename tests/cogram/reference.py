"""CoGraM in plain loops of whole forward passes, to compare with: slow, and hard to get wrong."""

import torch
import torch.nn.functional as F
from torch.func import functional_call

LEVELS = ("layer", "neuron", "weight")


def plain_cogram(
    model,
    start,
    experts,
    inputs,
    labels,
    *,
    levels,
    thresholds,
    steepness=5.5,
    order="sequential",
    rollback=("neuron", "weight"),
):
    """One pass over a chain of modules; the state, and rows (layer, level, unit, weight, accepted)."""
    model = model.double()
    state = {key: value.double().clone() for key, value in start.items()}
    experts = [{key: value.double() for key, value in e.items()} for e in experts]
    names = [name for name, module in model.named_modules() if list(module.parameters(recurse=False))]
    log = []

    def loss(changed):
        return F.cross_entropy(functional_call(model, changed, (inputs.double(),)), labels).item()

    def weighed(candidates):
        losses = torch.tensor([loss(each) for each in candidates], dtype=torch.float64)
        return losses, torch.softmax(-steepness * losses, 0)

    def put(base, entries, values):
        """A copy of a state with some entries, (key, index), set to values."""
        changed = dict(base)
        for (key, index), value in zip(entries, values, strict=True):
            changed[key] = changed[key].clone()
            changed[key][index] = value
        return changed

    def judge(level, base, entries, finest):
        own = [[e[key][index] for key, index in entries] for e in experts]
        losses, alphas = weighed([put(base, entries, values) for values in own])
        spread = (losses.max() - losses.min()).item()
        low, high = thresholds.get(level, (0.0, float("inf")))
        if not finest and not low <= spread <= high:
            return None, None, float("nan")
        mixed = [sum(a * v for a, v in zip(alphas, parts)) for parts in zip(*own)]
        return alphas, mixed, loss(put(base, entries, mixed))

    def below(level, after, before):
        return level not in rollback or after < before - 1e-12 * max(1.0, abs(before))

    def decide_all(parts, base, level, finest):
        """Against one network: (part, entries) to which are kept, what is left, and the state."""
        before = loss(base)
        judged = [(part, entries, *judge(level, base, entries, finest)) for part, entries in parts]
        left = [part for part, _, alphas, _, _ in judged if alphas is None]
        good = sorted((j for j in judged if below(level, j[4], before) and j[2] is not None), key=lambda j: j[4])
        while good:
            trial = base
            for _, entries, _, mixed, _ in good:
                trial = put(trial, entries, mixed)
            if below(level, loss(trial), before):
                base = trial
                break
            good = good[: len(good) // 2]
        kept = {part for part, *_ in good}
        return [(part, part in kept) for part, _ in parts], left, base

    for name in reversed(names):
        keys = [key for key in state if key.rpartition(".")[0] == name]
        fan_in = state[f"{name}.weight"].shape[1]
        rows = len(state[f"{name}.weight"])
        neuron = {j: [(key, j) for key in keys] for j in range(rows)}
        weight = {
            (j, i): [(f"{name}.weight", (j, i)) if i < fan_in else (f"{name}.bias", j)]
            for j in range(rows)
            for i in range(fan_in + 1)
        }
        if "layer" in levels:
            finest = levels[-1] == "layer"
            alphas, mixed, after = judge("layer", state, [(key, ...) for key in keys], finest)
            kept = alphas is not None and below("layer", after, loss(state))
            log.append((name, "layer", -1, -1, kept))
            if kept:
                state = put(state, [(key, ...) for key in keys], mixed)
            if alphas is not None:
                continue
        if order == "simultaneous":
            left = list(range(rows))
            if "neuron" in levels:
                decided, left, state = decide_all(neuron.items(), state, "neuron", levels[-1] == "neuron")
                log += [(name, "neuron", j, -1, kept) for j, kept in decided]
            if "weight" in levels and left:
                parts = [(part, entries) for part, entries in weight.items() if part[0] in left]
                decided, _, state = decide_all(parts, state, "weight", True)
                log += [(name, "weight", *part, kept) for part, kept in decided]
            continue
        for j in range(rows):
            if "neuron" in levels:
                alphas, mixed, after = judge("neuron", state, neuron[j], levels[-1] == "neuron")
                kept = alphas is not None and below("neuron", after, loss(state))
                log.append((name, "neuron", j, -1, kept))
                if kept:
                    state = put(state, neuron[j], mixed)
                if alphas is not None:
                    continue
            for i in range(fan_in + 1) if "weight" in levels else ():
                _, mixed, after = judge("weight", state, weight[j, i], True)
                kept = below("weight", after, loss(state))
                log.append((name, "weight", j, i, kept))
                if kept:
                    state = put(state, weight[j, i], mixed)
    return state, log

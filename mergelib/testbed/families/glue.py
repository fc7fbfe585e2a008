"""GLUE on RoBERTa: eight fine-tuned encoders under their own classification heads.

What CART's tables 2 and 4 measure: the encoders of eight GLUE tasks (Wang et al. 2018) are merged,
every task keeps the head it was fine-tuned with. GLUE's test labels are secret, so its validation
part is what is judged on, as in the literature, and validation rows are drawn from the training
part. CoLA is scored by Matthews' correlation, STS-B, a regression, by the mean of Pearson's and
Spearman's, the others by accuracy; hence an evaluation of its own, `evaluate_glue`. The paper does
not name its checkpoints; by default those are taken that one author has published for all eight
tasks. Needs the extra ``hub`` (transformers, datasets).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call

from mergelib.data import hub
from mergelib.data.glyphs import stable_seed
from mergelib.statedict import StateDict, check_compatible
from mergelib.studies.comparison import merge_zoo, only
from mergelib.testbed.evaluation import SplitName
from mergelib.testbed.suites import draw, stratified
from mergelib.testbed.tasks import Split, Suite, Task
from mergelib.testbed.zoo import Zoo

MAX_LENGTH = 128  # tokens of an example


@dataclass(frozen=True)
class Source:
    """A task of GLUE: the columns of its sentences, its score, and the split that is judged on."""

    sentences: tuple[str, ...]
    metric: str = "accuracy"
    test: str = "validation"


# In the order of the paper's tables.
SOURCES: dict[str, Source] = {
    "cola": Source(("sentence",), "matthews"),
    "sst2": Source(("sentence",)),
    "mrpc": Source(("sentence1", "sentence2")),
    "stsb": Source(("sentence1", "sentence2"), "correlation"),
    "qqp": Source(("question1", "question2")),
    "mnli": Source(("premise", "hypothesis"), test="validation_matched"),
    "qnli": Source(("question", "sentence")),
    "rte": Source(("sentence1", "sentence2")),
}


class Encoder(nn.Module):
    """RoBERTa without pooler and head.

    Forward: tokens ``(B, N)`` to the last hidden state of the first token, ``(B, width)``.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        from transformers import RobertaModel

        self.roberta = RobertaModel(config, add_pooling_layer=False)
        self.padding = config.pad_token_id

    def forward(self, tokens: Tensor) -> Tensor:
        outputs = self.roberta(input_ids=tokens, attention_mask=(tokens != self.padding).long())
        first: Tensor = outputs.last_hidden_state[:, 0]
        return first


class TaskHead(nn.Module):
    """A task's own, frozen head: features ``(B, width)`` to ``(B, classes)``, or ``(B, 1)``."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier.requires_grad_(False)

    def forward(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.classifier(features[:, None])  # which takes the first of a sequence
        return outputs


def load_glue_zoo(
    *,
    model: str | Path = "FacebookAI/roberta-base",
    experts: str | Mapping[str, str | Path] | None = None,
    tasks: Sequence[str] | None = None,
    seed: int = 0,
    train_size: int = 1000,
    validation_size: int = 1000,
    test_size: int | None = None,
    root: str | Path | None = None,
    device: torch.device | str = "cpu",
) -> Zoo:
    """RoBERTa, its experts on GLUE, their heads and the tokenised tasks.

    All but STS-B are classification tasks, on which every study runs; a zoo that has STS-B is
    judged by `evaluate_glue`.

    Args:
        model: the pretrained model's name on the hub, or its folder in transformers' format.
        experts: the folder or the name on the hub of every task's fine-tuned classifier, as a
            mapping or a pattern with ``{task}``; for a folder ``NAME`` the folders ``NAME-TASK``.
        tasks: keys of `SOURCES`; all by default.
        seed: draws the rows.
        train_size: training rows of a task, at most.
        validation_size: validation rows, at most; never over a fifth of the training part.
        test_size: test rows, at most; by default all.
        root: folder of local data sets, see `mergelib.data.hub.load_data`.
        device: where the zoo's tensors lie.

    Returns:
        The zoo; inputs are tokens int64 ``(N, length)``, STS-B's labels float32 in 0..5.

    Raises:
        ValueError: an unknown task, or a model, expert or data set that cannot be had or does not
            fit.
    """
    from transformers import AutoTokenizer, RobertaForSequenceClassification

    names = list(SOURCES if tasks is None else tasks)
    for name in names:
        if name not in SOURCES:
            raise ValueError(f"unknown task {name!r} of GLUE; known: {', '.join(SOURCES)}")
    hub.check_sizes(train_size=train_size, validation_size=validation_size, test_size=test_size)
    local, folder = Path(model).expanduser(), hub.fetch(model)
    encoder = hub.load_weights(Encoder(hub.read_config(folder, "roberta")), folder, "roberta.")
    encoder.to(device)
    pretrained = {key: value.clone() for key, value in encoder.state_dict().items()}
    default = f"{local}-{{task}}" if local.exists() else "JeremiahZ/roberta-base-{task}"
    files = hub.locate(experts or default, names)
    states: dict[str, dict[str, Tensor]] = {}
    heads: dict[str, nn.Module] = {}
    for name, file in files.items():
        states[name] = {
            key: value.to(device)
            for key, value in hub.read_part(file, "roberta.", pretrained).items()
        }
        whole: Any = RobertaForSequenceClassification(hub.read_config(file, "roberta"))
        hub.load_weights(whole, file)
        heads[name] = TaskHead(whole.classifier).to(device)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sizes = (train_size, validation_size, test_size)
    loaded = {name: _load_task(name, tokenizer, sizes, seed, root) for name in names}
    sources = {f"glue/{name}": hub.digest_of(task) for name, task in loaded.items()}
    suite = Suite(f"glue{len(names)}", seed, loaded, sources)
    fingerprint = hub.fingerprint([folder, *files.values()])
    return Zoo(suite, encoder, pretrained, states, heads, files, fingerprint)


def evaluate_glue(
    zoo: Zoo, state: StateDict, *, split: SplitName = "test", batch_size: int = 256
) -> pd.DataFrame:
    """The score of one encoder on every task, under the task's own head.

    Args:
        zoo: from `load_glue_zoo`.
        state: the encoder's weights, complete.
        split: which part of each task.
        batch_size: rows a forward pass.

    Returns:
        A table with a row a task: ``task``, ``metric``, ``score`` (at most 1), ``n``.

    Raises:
        ValueError: a state dict that does not fit the model.
    """
    check_compatible(zoo.model.state_dict(), {"the state": state}, "the model")
    device = next(iter(zoo.pretrained.values())).device
    state = {key: value.to(device) for key, value in state.items()}
    rows = []
    for name, task in zoo.suite.tasks.items():
        part, metric = getattr(task, split), SOURCES[name].metric
        with torch.no_grad():
            outputs = [
                zoo.heads[name](functional_call(zoo.model, state, (tokens.to(device),))).cpu()
                for tokens in part.inputs.split(batch_size)
            ]
        score = _SCORES[metric](torch.cat(outputs), part.labels)
        rows.append({"task": name, "metric": metric, "score": score, "n": len(part)})
    return pd.DataFrame(rows)


def compare_glue(zoo: Zoo, settings: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """CART's table 2: `evaluate_glue` of the experts and of merging methods, on test data.

    Args:
        zoo: from `load_glue_zoo`.
        settings: method to hyperparameters.

    Returns:
        A row a method and task, as in `evaluate_glue`, with the column ``method``; ``individual``
        stands for the experts, each on its own task.
    """
    tables = [
        evaluate_glue(replace(zoo, suite=only(zoo.suite, [task])), expert).assign(
            method="individual"
        )
        for task, expert in zoo.experts.items()
    ]
    tables += [
        evaluate_glue(zoo, merge_zoo(method, zoo, **options)).assign(method=method)
        for method, options in settings.items()
    ]
    return pd.concat(tables, ignore_index=True)


def _load_task(
    name: str,
    tokenizer: Any,
    sizes: tuple[int, int, int | None],
    seed: int,
    root: str | Path | None,
) -> Task:
    source, generator = SOURCES[name], Generator().manual_seed(stable_seed("glue", name, seed))
    train, test = (
        hub.load_data(name, "nyu-mll/glue", name, part, root) for part in ("train", source.test)
    )
    for column in (*source.sentences, "label"):
        if column not in train.features:
            columns = ", ".join(train.features)
            raise ValueError(f"data of task {name!r}: no column {column!r} among {columns}")
    regression = source.metric == "correlation"

    def labels(data: Any) -> Tensor:
        return torch.tensor(list(data["label"]), dtype=torch.float32 if regression else torch.int64)

    def read(data: Any, rows: Tensor) -> Split:
        chosen = data.select(rows.tolist())
        sentences = [list(chosen[column]) for column in source.sentences]
        tokens = tokenizer(
            *sentences, padding=True, truncation=True, max_length=MAX_LENGTH, return_tensors="pt"
        )
        return Split(tokens["input_ids"], labels(chosen))

    strata = labels(train).round().long()
    train_rows, validation_rows = draw(strata, sizes[:2], generator)
    strata = labels(test).round().long()
    test_rows = stratified(strata, sizes[2] or len(strata), generator)
    classes = getattr(train.features["label"], "names", None)
    return Task(
        name,
        ("similarity",) if regression else tuple(classes or map(str, labels(train).unique())),
        read(train, train_rows),
        read(train, validation_rows),
        read(test, test_rows),
    )


def _accuracy(outputs: Tensor, labels: Tensor) -> float:
    return float((outputs.argmax(1) == labels).double().mean())


def _matthews(outputs: Tensor, labels: Tensor) -> float:
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(labels.numpy(), outputs.argmax(1).numpy()))


def _correlation(outputs: Tensor, labels: Tensor) -> float:
    from scipy.stats import pearsonr, spearmanr

    pair = outputs[:, 0].numpy(), labels.numpy()
    return float((pearsonr(*pair).statistic + spearmanr(*pair).statistic) / 2)


_SCORES: dict[str, Callable[[Tensor, Tensor], float]] = {
    "accuracy": _accuracy,
    "matthews": _matthews,
    "correlation": _correlation,
}

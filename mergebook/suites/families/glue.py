"""GLUE on RoBERTa: eight fine-tuned encoders under their own heads, as in CART's tables 2 and 4.

GLUE's test labels are secret, so its validation part judges (Wang et al. 2018). CoLA is scored by
Matthews' correlation, STS-B, a regression, by the mean of Pearson's and Spearman's. The paper does
not name its checkpoints: these are of one author. Needs the extra ``hub`` (transformers, datasets).
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mergebook.suites.data import hub
from mergebook.suites.data.sampling import draw
from mergebook.suites.registry import Family, LoadedTask, Sizes, register
from mergebook.suites.types import Zoo
from mergelib.evaluation.tasks import ACCURACY, Loss, Metric, Split, Suite, Task, cross_entropy
from mergelib.io.hub import fetch

MODEL = "FacebookAI/roberta-base"
MAX_LENGTH = 128  # tokens of an example


def squared_error(outputs: Tensor, labels: Tensor, *, reduction: str = "mean") -> Tensor:
    """Return the squared error of one output per label, ``(N, 1)`` or ``(N,)`` and ``(N,)``."""
    if outputs.numel() != labels.numel():
        shape = tuple(outputs.shape)
        raise ValueError(f"outputs have shape {shape}, expected one for each of {len(labels)}")
    return F.mse_loss(outputs.flatten(), labels.flatten().to(outputs.dtype), reduction=reduction)


def matthews(outputs: Tensor, labels: Tensor) -> float:
    """Return Matthews' correlation of predicted classes and labels, -1..1."""
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(labels.numpy(), outputs.argmax(1).numpy()))


def correlation(outputs: Tensor, labels: Tensor) -> float:
    """Return the mean of Pearson's and Spearman's correlation of outputs ``(N, 1)`` and labels."""
    from scipy.stats import pearsonr, spearmanr

    pair = outputs.flatten().numpy(), labels.numpy()
    return float((pearsonr(*pair).statistic + spearmanr(*pair).statistic) / 2)


MATTHEWS = Metric("matthews", matthews)
CORRELATION = Metric("correlation", correlation, of_classes=False)


@dataclass(frozen=True)
class Source:
    """A task of GLUE: the columns of its sentences, metric, loss, and the split to judge on."""

    sentences: tuple[str, ...]
    metric: Metric = ACCURACY
    loss: Loss = cross_entropy
    test: str = "validation"


# In the order of the paper's tables.
SOURCES: dict[str, Source] = {
    "cola": Source(("sentence",), MATTHEWS),
    "sst2": Source(("sentence",)),
    "mrpc": Source(("sentence1", "sentence2")),
    "stsb": Source(("sentence1", "sentence2"), CORRELATION, squared_error),
    "qqp": Source(("question1", "question2")),
    "mnli": Source(("premise", "hypothesis"), test="validation_matched"),
    "qnli": Source(("question", "sentence")),
    "rte": Source(("sentence1", "sentence2")),
}


class Encoder(nn.Module):
    """RoBERTa: tokens ``(B, N)`` to the last hidden state of the first token, ``(B, width)``."""

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


def load_zoo(
    suite: Suite, /, *, model: str | Path = MODEL, device: torch.device | str = "cpu"
) -> Zoo:
    """RoBERTa from the hub, or a folder with experts ``MODEL-TASK``, and the experts' heads."""
    from transformers import RobertaForSequenceClassification

    local, folder = Path(model).expanduser(), fetch(model)
    encoder = hub.load_weights(Encoder(hub.read_config(folder, "roberta")), folder, "roberta.")
    encoder.to(device)
    experts = str(local) if local.exists() else "JeremiahZ/roberta-base"
    zoo = hub.zoo_of_files(suite, encoder, folder, f"{experts}-", "roberta.")
    heads: dict[str, nn.Module] = {}
    for name, file in zoo.files.items():
        complete: Any = RobertaForSequenceClassification(hub.read_config(file, "roberta"))
        hub.load_weights(complete, file)
        heads[name] = TaskHead(complete.classifier).to(device)
    return replace(zoo, heads=heads)


def load_task(
    name: str, sizes: Sizes, seed: int, data: str | Path | None, /, *, tokenizer: str | Path = MODEL
) -> LoadedTask:
    """One task; its inputs are tokens int64 ``(N, length)``, STS-B's labels float32 in 0..5."""
    source = SOURCES[name]
    train, test = (
        hub.load_data(name, "nyu-mll/glue", name, part, data) for part in ("train", source.test)
    )
    for column in (*source.sentences, "label"):
        if column not in train.features:
            columns = ", ".join(train.features)
            raise ValueError(f"data of task {name!r}: no column {column!r} among {columns}")
    tokenize = hub.read_tokenizer(fetch(tokenizer))
    rows = draw(_strata(train), _strata(test), sizes, "glue", name, seed)
    parts = zip((train, train, test), rows, strict=True)
    splits = [_read(source, part.select(chosen.tolist()), tokenize) for part, chosen in parts]
    judged: dict[str, Any] = {"loss": source.loss, "metric": source.metric}
    task = Task(name, _class_names(source, train), splits[0], splits[1], splits[2], **judged)
    return task, {f"glue/{name}": task.sha256()}


def _strata(data: Any) -> Tensor:
    """Labels as whole numbers; each split gets the same fractions of them."""
    return torch.tensor(list(data["label"]), dtype=torch.float32).round().long()


def _class_names(source: Source, data: Any) -> tuple[str, ...]:
    if not source.metric.of_classes:
        return ("similarity",)
    names = getattr(data.features["label"], "names", None)
    return tuple(names or map(str, sorted(set(data["label"]))))


def _read(source: Source, data: Any, tokenize: Any) -> Split:
    """Rows as tokens, padded to the longest of them, and their labels."""
    sentences = [list(data[column]) for column in source.sentences]
    tokens = tokenize(
        *sentences, padding=True, truncation=True, max_length=MAX_LENGTH, return_tensors="pt"
    )
    dtype = torch.int64 if source.metric.of_classes else torch.float32
    return Split(tokens["input_ids"], torch.tensor(list(data["label"]), dtype=dtype))


_SIZES: Sizes = (1000, 1000, None)
GLUE = register(
    Family(
        "glue",
        {"glue8": tuple(SOURCES)},
        load_task,
        {"smoke": (240, 48, 120), "default": _SIZES, "full": _SIZES},
        model=MODEL,
        load_zoo=load_zoo,
    )
)

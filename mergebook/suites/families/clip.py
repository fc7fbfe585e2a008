"""CLIP at the papers' own scale: the suites ``clip8/14/20`` and zoos of public experts.

The tasks are those of Ilharco et al. (2023) and Wang et al. (2024), the experts FusionBench's (Tang
et al., arXiv:2406.03280), whose data sets are taken too, as only their parts leak nothing. The
tower is merged up to its pooled token. Needs the extra ``hub`` (transformers, datasets).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from mergebook.suites.data import hub
from mergebook.suites.data.origins import records
from mergebook.suites.data.sampling import draw
from mergebook.suites.models import Head, scale_pixels
from mergebook.suites.registry import Family, LoadedTask, Sizes, register
from mergebook.suites.types import Zoo
from mergelib.evaluation.tasks import Split, Suite, Task
from mergelib.hashing import fingerprint, sha256_of
from mergelib.io import Checkpoint
from mergelib.io.hub import fetch
from mergelib.progress import progress

MODEL = "clip-vit-base-patch32"
SCALE = 100.0  # CLIP's own inverse temperature, where its training clips it
# What CLIP's training subtracts from pictures in 0..1 and divides them by, for each colour.
MEAN = (0.48145466, 0.4578275, 0.40821073)
DEVIATION = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True)
class Source:
    """A task's data on the hub, and how its classes are put into words."""

    repository: str
    templates: tuple[str, ...]  # sentences with {} for the class
    class_names: tuple[str, ...] = ()  # in the order of the labels; by default the data set's own
    subset: str | None = None
    test: str = "test"
    underscores: bool = False  # stand for spaces in the data set's own class names


SOURCES = records("clip", Source)  # the suites are the first 8, 14 and 20 of them


class VisionTower(nn.Module):
    """CLIP's vision tower: images ``(B, 3, side, side)`` in -1..1 to ``(B, projection_dim)``."""

    projection: Tensor
    slope: Tensor
    shift: Tensor

    def __init__(self, clip: Any) -> None:
        super().__init__()
        self.vision_model = clip.vision_model
        mean, deviation = (torch.tensor(colour).view(3, 1, 1) for colour in (MEAN, DEVIATION))
        frozen = {
            "projection": clip.visual_projection.weight.detach(),
            "slope": 0.5 / deviation,  # from -1..1 to what CLIP wants, in one step
            "shift": (0.5 - mean) / deviation,
        }
        for name, tensor in frozen.items():
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        pooled = self.vision_model(pixel_values=images * self.slope + self.shift).pooler_output
        return F.linear(pooled, self.projection)


@torch.no_grad()
def zero_shot_head(
    clip: Any, tokenizer: Any, class_names: Sequence[str], templates: Sequence[str]
) -> Head:
    """CLIP's text classifier (Radford et al. 2021, 3.1.4): means of normalised embeddings."""
    prompts = [template.format(name) for name in class_names for template in templates]
    device = clip.text_projection.weight.device
    length = clip.config.text_config.max_position_embeddings
    options = {"padding": True, "truncation": True, "max_length": length, "return_tensors": "pt"}
    parts = []
    for start in range(0, len(prompts), 256):
        tokens = tokenizer(prompts[start : start + 256], **options).to(device)
        mask = tokens["attention_mask"]
        pooled = clip.text_model(input_ids=tokens["input_ids"], attention_mask=mask).pooler_output
        parts.append(F.normalize(clip.text_projection(pooled), dim=1))
    embeddings = torch.cat(parts).view(len(class_names), len(templates), -1)
    return Head(embeddings.mean(1), scale=SCALE)


def load_task(
    name: str, sizes: Sizes, seed: int, data: str | Path | None, /, *, side: int = 224
) -> LoadedTask:
    """One task as CLIP sees it: uint8 ``(N, 3, side, side)``; experts saw the validation rows."""
    source = SOURCES[name]
    train_part, test_part = (_Part(name, source, split, data) for split in ("train", source.test))
    rows = draw(train_part.labels, test_part.labels, sizes, "clip", name, seed)
    train, validation = (train_part.read(chosen, side) for chosen in rows[:2])
    test, names = test_part.read(rows[2], side), train_part.class_names
    task = Task(name, names, train, validation, test, transform=scale_pixels)
    return task, {f"clip/{name}": task.sha256()}


class _Part:
    """One split of a task's data set: labels in memory, images read when asked for."""

    def __init__(self, task: str, source: Source, split: str, root: str | Path | None) -> None:
        self.task = task
        self.data = hub.load_data(task, source.repository, source.subset, split, root)
        features = self.data.features
        pictures = [key for key, kind in features.items() if type(kind).__name__ == "Image"]
        labels = [key for key in ("label", "labels", "fine_label", "cls") if key in features]
        if not pictures or not labels:
            raise ValueError(
                f"data of task {task!r}: no pictures with labels among the columns {list(features)}"
            )
        self.picture = pictures[0]
        self.labels = torch.tensor(list(map(int, self.data[labels[0]])), dtype=torch.int64)
        named = getattr(features[labels[0]], "names", None) or ()
        own = [name.replace("_", " ") if source.underscores else name for name in named]
        self.class_names = source.class_names or tuple(own)
        classes = len(named) or len(self.labels.unique())
        if classes != len(self.class_names):
            raise ValueError(
                f"data of task {task!r}: {classes} classes, but {len(self.class_names)} names"
            )

    def read(self, rows: Tensor, side: int) -> Split:
        pictures = torch.empty(len(rows), 3, side, side, dtype=torch.uint8)
        chosen = progress(self.data.select(rows.tolist()), desc=self.task, leave=False)
        for i, row in enumerate(chosen):
            pictures[i] = picture(row[self.picture], side)
        return Split(pictures, self.labels[rows])


def picture(image: Image.Image, side: int = 224) -> Tensor:
    """An image as CLIP's own preprocessing cuts it: uint8 ``(3, side, side)``."""
    from torchvision.transforms import functional as T

    resized = T.resize(image.convert("RGB"), side, T.InterpolationMode.BICUBIC)
    cut: Tensor = T.pil_to_tensor(T.center_crop(resized, [side, side]))
    return cut


def load_zoo(
    suite: Suite, /, *, model: str | Path = MODEL, device: torch.device | str = "cpu"
) -> Zoo:
    """CLIP from the hub, or a folder with experts ``MODEL_TASK``, and zero-shot heads."""
    from transformers import CLIPModel

    local = Path(model).expanduser()
    folder = fetch(local if local.exists() or "/" in str(model) else f"openai/{model}")
    clip: Any = CLIPModel(hub.read_config(folder, "clip"))
    clip.load_state_dict(hub.read_part(folder, "", clip.state_dict()))
    tower = VisionTower(clip.eval().to(device))
    pretrained = {key: value.clone() for key, value in tower.state_dict().items()}
    start = str(local) if local.exists() else f"tanganke/{local.name.partition('@')[0]}"
    files = {name: fetch(f"{start}_{name}") for name in suite.tasks}
    experts = {
        name: {key: tensor.to(device) for key, tensor in part.items()}
        for name, file in files.items()
        for part in [hub.read_part(file, "vision_model.", pretrained)]
    }
    tokenizer = hub.read_tokenizer(folder)
    prompts = [(name, suite.tasks[name].class_names, SOURCES[name].templates) for name in files]
    heads: dict[str, nn.Module] = {
        name: zero_shot_head(clip, tokenizer, names, texts) for name, names, texts in prompts
    }
    folders = {"pretrained": folder, **files}
    shards = [file for each in folders.values() for file in sorted(Checkpoint(each).shards)]
    made = fingerprint(fingerprint("".join(map(sha256_of, shards))) + repr(prompts))
    return Zoo(suite, tower, pretrained, experts, heads, files, made, hub.revisions(folders))


CLIP = register(
    Family(
        "clip",
        {f"clip{count}": tuple(SOURCES)[:count] for count in (8, 14, 20)},
        load_task,
        {"smoke": (240, 48, 120), "default": (1000, 1000, None), "full": (1000, 1000, None)},
        model=MODEL,
        load_zoo=load_zoo,
    )
)

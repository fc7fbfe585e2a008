"""CLIP's suites and zoos, on tiny random CLIPs and pictures made on the spot; no network."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import mergebook as mb
import mergelib as ml
from mergebook import Recipe, load_zoo
from mergebook.lab.catalogue import get_study
from mergebook.lab.comparison import compare
from mergebook.suites.families import clip, family_of
from mergebook.suites.types import (
    Zoo,
)
from mergebook.suites.zoo import make_heads
from mergelib.evaluation.tasks import (
    Suite,
)

transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.usefixtures("offline")

CLASSES = {"eurosat": ("forest", "pasture", "sea or lake"), "rendered-sst2": ("0", "1")}
MODEL = "clip-vit-tiny"


def make_clip(seed: int) -> Any:
    """A CLIP of some thousand weights, whose text tower knows single characters."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 64}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2}
    tokens = {"bos_token_id": 78, "eos_token_id": 79, "pad_token_id": 79}
    config = transformers.CLIPConfig(
        text_config={**sizes, **tokens, "vocab_size": 80, "max_position_embeddings": 64},
        vision_config={**sizes, "image_size": 32, "patch_size": 8},
        projection_dim=16,
    )
    model = transformers.CLIPModel(config).eval()
    for parameter in model.parameters():  # CLIP's own start is so small that features hardly differ
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def save_tokenizer(folder: Path) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,-"
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "CLIPTokenizer"}')


def save_pictures(folder: Path) -> None:
    """Ten training and four test pictures a class, 40 x 33 and noisy, in folders of classes."""
    generator = np.random.default_rng(0)
    for task, classes in CLASSES.items():
        for part, count in (("train", 10), ("test", 4)):
            for label, name in enumerate(classes):
                (folder / task / part / name).mkdir(parents=True)
                for i in range(count):
                    pixels = generator.integers(60 * label, 60 * label + 100, (33, 40, 3))
                    file = folder / task / part / name / f"{i}.png"
                    Image.fromarray(pixels.astype(np.uint8)).save(file)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures, a CLIP, an expert that is a whole CLIP and one that is a vision tower alone."""
    folder = tmp_path_factory.mktemp("clip")
    save_pictures(folder)
    make_clip(0).save_pretrained(folder / MODEL)
    save_tokenizer(folder / MODEL)
    make_clip(1).save_pretrained(folder / f"{MODEL}_eurosat")
    tower = transformers.CLIPVisionModel(make_clip(2).config.vision_config)
    tower.save_pretrained(folder / f"{MODEL}_rendered-sst2")
    return folder


@pytest.fixture(autouse=True)
def two_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(clip.CLIP.suites, "clip8", tuple(CLASSES))


def load_suite(folder: Path, **options: Any) -> Suite:
    return mb.load_suite("clip8", data=folder, side=32, **options)


@pytest.fixture
def zoo(folder: Path) -> Zoo:
    return mb.load_zoo(load_suite(folder), model=str(folder / MODEL))


def test_suite_names_are_the_papers_tasks() -> None:
    assert len(clip.SOURCES) == 20
    assert clip.CLIP.suites["clip14"] == tuple(clip.SOURCES)[:14]
    assert all("{}" in text for source in clip.SOURCES.values() for text in source.templates)
    # CLIP's own prompts: 2 for scenes, 8 for cars, 18 for aerial views, 8 for textures, 18 CIFAR
    counts = [len(clip.SOURCES[task].templates) for task in ("sun397", "stanford-cars", "resisc45")]
    assert counts == [2, 8, 18]
    assert [len(clip.SOURCES[task].templates) for task in ("dtd", "cifar100")] == [8, 18]
    assert clip.SOURCES["dtd"].templates[4] == "a photo of the {} texture."
    assert clip.SOURCES["resisc45"].templates[1] == "aerial imagery of {}."
    assert "a photo of the big {}." in clip.SOURCES["cifar10"].templates


def test_suite(folder: Path) -> None:
    suite = load_suite(folder, train_size=12, validation_size=100)
    task = suite.tasks["eurosat"]
    assert task.class_names == ("forest", "pasture", "sea or lake")
    assert suite.tasks["rendered-sst2"].class_names == ("negative", "positive")
    assert [len(split) for split in (task.train, task.validation, task.test)] == [12, 6, 12]
    assert task.test.inputs.shape == (12, 3, 32, 32)
    assert task.test.inputs.dtype == torch.uint8
    for label in range(3):  # pictures of class k were drawn from 60 k to 60 k + 100
        pictures = task.test.inputs[task.test.labels == label].float()
        assert pictures.mean().item() == pytest.approx(60 * label + 49.5, abs=3)
    rows = {tuple(row.flatten().tolist()) for row in task.train.inputs}
    assert not rows & {tuple(row.flatten().tolist()) for row in task.validation.inputs}


def test_suite_is_drawn_by_its_seed(folder: Path) -> None:
    first, again, other = (load_suite(folder, seed=seed, tasks=["eurosat"]) for seed in (0, 0, 1))
    assert first.sources == again.sources != other.sources
    assert list(first.tasks) == ["eurosat"]


def test_picture_equals_clips_own_preprocessing() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (50, 71, 3)).astype(np.uint8)
    processor = transformers.CLIPImageProcessor(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    )
    theirs = processor(Image.fromarray(pixels), return_tensors="pt")["pixel_values"][0]
    mean, deviation = (torch.tensor(colour).view(3, 1, 1) for colour in (clip.MEAN, clip.DEVIATION))
    ours = (clip.picture(Image.fromarray(pixels), 32) / 255 - mean) / deviation
    assert (ours - theirs).abs().max() < 1.01 / 255 / min(clip.DEVIATION)  # one step of a byte
    assert (ours - theirs).abs().mean() < 0.1 / 255


def test_features_are_clips(zoo: Zoo) -> None:
    images = zoo.suite.tasks["eurosat"].test.inputs
    mean, deviation = (torch.tensor(colour).view(3, 1, 1) for colour in (clip.MEAN, clip.DEVIATION))
    with torch.no_grad():
        theirs = make_clip(0).get_image_features((images / 255 - mean) / deviation)
        theirs = getattr(theirs, "pooler_output", theirs)  # transformers 4 gives the tensor itself
        ours = zoo.model(images / 127.5 - 1)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert theirs.std(0).mean() > 1e-3  # pictures do differ


def test_head_is_clips_zero_shot_classifier(folder: Path, zoo: Zoo) -> None:
    model = make_clip(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / MODEL)
    rows = []
    for name in ("forest", "pasture", "sea or lake"):
        embeddings = []
        for template in clip.SOURCES["eurosat"].templates:  # one by one, hence unpadded
            tokens = tokenizer(template.format(name), return_tensors="pt")
            pooled = model.get_text_features(**tokens)
            pooled = getattr(pooled, "pooler_output", pooled)[0]
            embeddings.append(pooled / pooled.norm())
        rows.append(torch.stack(embeddings).mean(0))
    direct = F.normalize(torch.stack(rows).detach(), dim=1)
    head = zoo.heads["eurosat"]
    torch.testing.assert_close(head.weight, direct, atol=1e-5, rtol=1e-5)
    assert head.scale == 100


def test_experts_have_the_weights_of_their_folders(folder: Path, zoo: Zoo) -> None:
    state = make_clip(1).state_dict()
    assert all(torch.equal(value, state[key]) for key, value in zoo.experts["eurosat"].items())
    tower = ml.load_state_dict(folder / f"{MODEL}_rendered-sst2")
    expert = zoo.experts["rendered-sst2"]
    assert all(
        torch.equal(expert[f"vision_model.{key.removeprefix('vision_model.')}"], value)
        for key, value in tower.items()
    )
    assert expert.keys() == zoo.pretrained.keys() == zoo.model.state_dict().keys()
    assert all(key.startswith("vision_model.") for key in expert)


def test_merging_and_comparing(zoo: Zoo) -> None:
    merged = ml.merge("average", zoo.experts)
    table = ml.evaluate(zoo.model, merged, zoo.heads, zoo.suite)
    assert table["n"].tolist() == [12, 8]
    key = "vision_model.encoder.layers.1.mlp.fc1.weight"
    torch.testing.assert_close(merged[key], sum(e[key] for e in zoo.experts.values()) / 2)
    table = compare(zoo, {"cart": {"rank_ratio": 0.5}, "ties": {}})
    assert set(table["method"]) == {"pretrained", "cart", "ties", "individual"}
    assert np.isfinite(table["loss"]).all()


@pytest.mark.parametrize(
    ("study", "settings", "table"),
    [
        ("baselines", {"grids": {"task_arithmetic": {"scale": [0.0, 0.5]}}}, "test"),
        ("ranks", {"rank_ratios": (0.1,), "scales": (1.0,), "uncentred_scales": ()}, "test"),
        ("task_counts", {"counts": (2,)}, "test"),
        ("interference", {"rank_ratios": (0.1, 1.0)}, "curves"),
        ("compression", {"rank_ratios": (0.1,), "mask_scales": (0.4,)}, "storage"),
        ("adaptation", {"steps": 2, "grids": {"task_arithmetic": {"scale": [0.3]}}}, "test"),
    ],
)
def test_every_study_runs(zoo: Zoo, study: str, settings: dict[str, Any], table: str) -> None:
    rows = get_study(study).function(zoo, **settings)[table]
    assert rows
    numbers = [value for row in rows for value in row.values() if isinstance(value, float)]
    assert np.isfinite(numbers).all()


def test_the_common_functions_lead_here(folder: Path) -> None:
    suite = mb.load_suite("clip8", data=folder, tasks=["eurosat"], test_size=6)
    assert suite.tasks["eurosat"].test.inputs.shape == (6, 3, 224, 224)
    small = load_suite(folder, tasks=["eurosat"])
    zoo = load_zoo(small, model=str(folder / MODEL))
    assert isinstance(zoo.model, clip.VisionTower)
    assert family_of("clip14").model == "clip-vit-base-patch32"
    assert family_of("clip14").recipe is None
    with pytest.raises(ValueError, match="clip8 has public experts, it takes no recipe"):
        load_zoo(small, model=str(folder / MODEL), recipe=Recipe())
    with pytest.raises(ValueError, match=r"experts and heads of clip8, .* are public"):
        make_heads(zoo.model, small)


def test_fingerprint_tells_experts_and_prompts_apart(
    folder: Path, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("", *(f"_{task}" for task in CLASSES)):
        (tmp_path / f"{MODEL}{name}").symlink_to(folder / MODEL)
    other = clip.load_zoo(zoo.suite, model=tmp_path / MODEL)
    again = clip.load_zoo(zoo.suite, model=folder / MODEL)
    assert again.fingerprint == zoo.fingerprint != other.fingerprint
    monkeypatch.setitem(clip.SOURCES, "eurosat", clip.Source("tanganke/eurosat", ("{}",)))
    worded = clip.load_zoo(zoo.suite, model=folder / MODEL)
    assert worded.fingerprint != zoo.fingerprint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "clip9"}, "unknown suite 'clip9'"),
        ({"profile": "huge"}, "unknown profile 'huge'; known: smoke, default, full"),
        ({"tasks": ["mnist"]}, "unknown task 'mnist' of clip8"),
        ({"validation_size": -1}, "validation_size must be at least 0, got -1"),
        ({"test_size": 0}, "test_size must be at least 1"),
        ({"data": "nowhere"}, "data of task 'eurosat': no 'train' in the hub's 'tanganke/eurosat'"),
    ],
)
def test_bad_suites(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        mb.load_suite(**{"name": "clip8", "data": folder, "side": 32, **options})
    assert "\n" not in str(caught.value)


def test_wrong_number_of_classes(tmp_path: Path) -> None:
    for name in ("bad", "good", "mixed"):
        (tmp_path / "rendered-sst2" / "train" / name).mkdir(parents=True)
        picture = Image.new("RGB", (8, 8))
        picture.save(tmp_path / "rendered-sst2" / "train" / name / "0.png")
    with pytest.raises(ValueError, match="'rendered-sst2': 3 classes, but 2 names"):
        load_suite(tmp_path, tasks=["rendered-sst2"])


def test_data_without_labels(tmp_path: Path) -> None:
    (tmp_path / "eurosat").mkdir()
    (tmp_path / "eurosat" / "train.jsonl").write_text('{"text": "no picture"}\n')
    with pytest.raises(ValueError, match=r"'eurosat': no pictures with labels .*text"):
        load_suite(tmp_path, tasks=["eurosat"])


def test_missing_and_wrong_models(folder: Path, zoo: Zoo, tmp_path: Path) -> None:
    messages: list[str] = []

    def load(model: str | Path) -> None:
        with pytest.raises(ValueError) as caught:  # noqa: PT011, the messages are looked at below
            clip.load_zoo(zoo.suite, model=model)
        messages.append(str(caught.value))

    def load_beside(experts: Path) -> None:
        """CLIP with the same expert for both tasks."""
        place = tmp_path / f"beside-{experts.name}"
        place.mkdir()
        (place / MODEL).symlink_to(folder / MODEL)
        for task in CLASSES if experts.exists() else ():
            (place / f"{MODEL}_{task}").symlink_to(experts)
        load(place / MODEL)

    smaller = transformers.CLIPVisionConfig(
        hidden_size=16,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=32,
        patch_size=8,
    )
    transformers.CLIPVisionModel(smaller).save_pretrained(tmp_path / "small")
    bert = transformers.RobertaConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=50
    )
    transformers.RobertaModel(bert).save_pretrained(tmp_path / "roberta")
    (tmp_path / "empty").mkdir()
    load("clip-vit-none")
    load(tmp_path / "empty")
    load(tmp_path / "roberta")
    load_beside(tmp_path / "none")
    load_beside(tmp_path / "small")
    load_beside(tmp_path / "roberta")
    expected = [
        "'openai/clip-vit-none' is neither a folder nor to be had from the hub",
        "empty is no model's folder: it holds no config.json",
        "roberta holds a model of type 'roberta', expected 'clip'",
        f"{MODEL}_eurosat' is neither a folder nor to be had from the hub",
        "has shape (16,), expected (32,) as in the model",
        f"{MODEL}_eurosat lacks key 'vision_model.embeddings.class_embedding'",
    ]
    for message, part in zip(messages, expected, strict=True):
        assert part in message
        assert "\n" not in message


def test_what_is_asked_of_the_hub(
    folder: Path, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenAI's model, here a pickle with relics as theirs is, and FusionBench's experts."""
    asked = []

    def snapshot(name: str, allow_patterns: list[str], revision: None) -> str:
        asked.append(name)
        copy = tmp_path / name.split("/")[1]
        copy.mkdir(exist_ok=True)
        pickled = name == f"openai/{MODEL}"
        for file in (folder / copy.name).iterdir():
            if file.suffix in (".json", ".txt") or not pickled:
                (copy / file.name).write_bytes(file.read_bytes())
        if pickled and "pytorch_model*" in allow_patterns:
            state = make_clip(0).state_dict()
            relics = {f"{tower}_model.embeddings.position_ids" for tower in ("vision", "text")}
            torch.save(
                state | {key: torch.arange(17)[None] for key in relics}, copy / "pytorch_model.bin"
            )
        return str(copy)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    loaded = clip.load_zoo(zoo.suite, model=MODEL)
    theirs = [f"tanganke/{MODEL}_{task}" for task in CLASSES]
    assert asked == [f"openai/{MODEL}", f"openai/{MODEL}", *theirs]
    assert all(torch.equal(loaded.pretrained[key], zoo.pretrained[key]) for key in zoo.pretrained)


def test_data_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PatchCamelyon and SVHN lie there: labels that are truth values, several configurations."""
    asked = []

    def load(repository: str, subset: str | None, split: str, revision: None) -> Any:
        asked.append((repository, subset, split))
        classes = 2 if "Camelyon" in repository else 10
        pictures = [Image.new("L", (9, 9), label) for label in range(classes)] * 5
        labels: list[Any] = list(range(classes)) * 5
        if classes == 2:
            labels = [bool(label) for label in labels]
        return datasets.Dataset.from_dict({"image": pictures, "label": labels})

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setitem(clip.CLIP.suites, "clip8", ("pcam", "svhn", "food101"))
    suite = mb.load_suite("clip8", tasks=["pcam", "svhn"], side=8)
    assert asked[0] == ("1aurent/PatchCamelyon", None, "train")
    assert asked[3] == ("ufldl-stanford/svhn", "cropped_digits", "test")
    assert suite.tasks["pcam"].class_names[1].endswith("tumor tissue")
    for task in suite.tasks.values():
        assert torch.equal(task.test.inputs[:, 0, 0, 0].long(), task.test.labels)
        assert task.test.inputs.shape[1:] == (3, 8, 8)  # grey becomes colour
    with pytest.raises(ValueError, match="'food101': 10 classes, but 0 names"):
        mb.load_suite("clip8", tasks=["food101"], side=8)

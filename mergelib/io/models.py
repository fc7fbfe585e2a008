"""What a caller may pass as a model: state dicts, modules, files, folders and adapters."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from mergelib.io.adapters import CONFIG, WithAdapter, read_config
from mergelib.io.checkpoint import WHOLE, AnyPath, Checkpoint
from mergelib.messages.warned import warn
from mergelib.statedict import StateDict, name_experts, named

Model = StateDict | nn.Module | AnyPath
Models = Mapping[str, Model] | Sequence[Model]
M = TypeVar("M", bound=Model)


def load_state_dict(path: AnyPath, *, dequantise: bool = False) -> dict[str, Tensor]:
    """Read the state dict in any file or folder that `Checkpoint` accepts, and raise its errors.

    For the folder of a LoRA adapter it is that of its base with the adapter applied.
    With ``dequantise`` FP8 and MXFP4 weights are multiplied by their scales.
    Tied tensors, in a pickle or in a file of `mergelib.save_state_dict`, share memory again.

    >>> save_state_dict({"head.weight": torch.ones(10, 64)}, "expert.safetensors")
    >>> load_state_dict("expert.safetensors")["head.weight"].shape
    torch.Size([10, 64])
    """
    return open_model(path, dequantise=dequantise).load()


def as_state(model: Model, *, lazy: bool = False, base: StateDict | None = None) -> StateDict:
    """Return a model's state dict: the mapping itself, a module's own tensors, or a file's.

    A ``lazy`` file is read tensor by tensor, on access; ``base`` is that of an adapter. Any other
    object is returned unchanged, so that the caller's own check can name it.
    """
    if isinstance(model, nn.Module):
        state: dict[str, Tensor] = model.state_dict()
        return state
    if isinstance(model, str | os.PathLike):
        model = open_model(model, base)
    return model.load() if isinstance(model, Checkpoint) and not lazy else model


def as_states(
    experts: Models, *, lazy: bool = False, base: StateDict | None = None
) -> dict[str, StateDict]:
    """Return the experts' state dicts by name; raises what `named` and `load_state_dict` raise."""
    models = named(experts).items()
    return name_experts({name: as_state(m, lazy=lazy, base=base) for name, m in models})


def is_adapter(path: AnyPath) -> bool:
    """Whether a path is the folder of an adapter that lies there without its base."""
    folder = Path(path)
    if not (folder / CONFIG).is_file():
        return False
    names = (f"{name}{end}" for name in WHOLE for end in ("", ".index.json"))
    return not any((folder / name).is_file() for name in names)


def split(path: AnyPath) -> tuple[Path | None, Path | None]:
    """Return the base that is written before an adapter's folder, and that folder; None if none."""
    if is_adapter(path):
        return None, Path(path)
    before, plus, after = os.fspath(path).rpartition("+")
    written = plus and not Path(path).exists() and is_adapter(after)
    return (Path(before), Path(after)) if written else (None, None)


def parts_of(path: AnyPath) -> list[Path]:
    """Return the files or folders of a model: one, or of ``BASE+ADAPTER`` two."""
    return [part for part in split(path) if part] or [Path(path)]


def find_base(path: AnyPath) -> tuple[str, Path | None]:
    """Return how an adapter's configuration names the base, and its folder if that is here."""
    named = str(read_config(Path(path)).get("base_model_name_or_path") or "")
    folders = (Path(named), Path(path) / named)
    return named, next((folder for folder in folders if named and folder.is_dir()), None)


def base_of(path: AnyPath) -> Path:
    """Return the folder of an adapter's base; ValueError if its configuration names none here."""
    named, folder = find_base(path)
    if folder is not None:
        return folder
    trained = f", which was trained on {named!r}, no folder here" if named else ""
    raise ValueError(
        f"{path} holds an adapter but no model{trained}: pass the base as pretrained (-p), or "
        f"write BASE+{path}"
    )


def open_model(path: AnyPath, base: StateDict | None = None, **options: Any) -> Checkpoint:
    """Return a `Checkpoint`; for an adapter's folder, or ``BASE+ADAPTER``, a base `WithAdapter`.

    An adapter's base is ``base``, or that of its configuration. Options are those of `Checkpoint`.
    """
    before, adapter = split(path)
    if adapter is None:
        return Checkpoint(path, **options)
    if before is not None or base is None:
        base = Checkpoint(before or base_of(adapter), **options)
    return WithAdapter(adapter, base, memory=options.get("memory"))


def resolve_base(models: Mapping[str, object], pretrained: M | None = None) -> M | Path | None:
    """Return ``pretrained``, or else the base that all adapters among the models name, if any.

    Warns of adapters that name another base than ``pretrained``, or several.

    Raises:
        ValueError: without ``pretrained``, if adapters name several bases or one that is not here.
    """
    bases: dict[str, Path] = {}
    for model in models.values():
        before, adapter = split(model) if isinstance(model, str | os.PathLike) else (None, None)
        if adapter is not None:
            named, folder = find_base(adapter)
            folder = before or (base_of(adapter) if pretrained is None else folder)
            bases.setdefault(str(folder.resolve()) if folder else named, adapter)
    listed = ", ".join(f"{adapter}: {base}" for base, adapter in bases.items())
    if pretrained is None and len(bases) > 1:
        raise ValueError(
            f"adapters of different bases: {listed}; if these are one model, pass it as pretrained"
        )
    if pretrained is None:
        return next(map(Path, bases), None)
    bases.pop("", None)
    several = len(bases) > 1
    if isinstance(pretrained, str | os.PathLike):
        place = Path(pretrained).resolve()
        bases = {b: a for b, a in bases.items() if b not in (str(place), str(place.parent))}
    if bases and (several or any(Path(base).is_dir() for base in bases)):
        listed = ", ".join(f"{adapter}: {base}" for base, adapter in bases.items())
        warn(
            f"adapters that were trained on another base ({listed}) are applied to pretrained, "
            "which is right only if these are one model"
        )
    return pretrained

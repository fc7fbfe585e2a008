"""Models and data sets of the Hugging Face hub, or folders on this machine that look like them.

An existing path is taken, nothing downloaded; a name may say ``NAME@REVISION``. A checkpoint of
another architecture is refused. No code that comes with a model or a data set is ever run.
"""

import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from mergelib.io import Checkpoint
from mergelib.statedict import StateDict, check_compatible

# What older checkpoints store beside the weights, and a pooler that no model here has.
_IGNORED = re.compile(r"(^|\.)(position_ids$|pooler\.)")


def revisions(folders: Mapping[str, Path]) -> dict[str, str]:
    """The commits of those folders that are snapshots of the hub's, for provenance."""
    return {
        name: folder.name for name, folder in folders.items() if folder.parent.name == "snapshots"
    }


def _read(auto: str, what: str, folder: Path) -> Any:
    import transformers

    try:
        return getattr(transformers, auto).from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"the {what} in {folder} cannot be used: {_line(error)}") from error


def read_config(folder: Path, kind: str) -> Any:
    """The configuration in a model's folder; ValueError for another `kind` of model than asked."""
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is no model's folder: it holds no config.json")
    config = _read("AutoConfig", "configuration", folder)
    if config.model_type != kind:
        raise ValueError(f"{folder} holds a model of type {config.model_type!r}, expected {kind!r}")
    return config


read_tokenizer = partial(_read, "AutoTokenizer", "tokenizer")  # in a model's folder


def read_part(folder: Path, prefix: str, like: StateDict) -> dict[str, Tensor]:
    """Tensors under `prefix`, as dtypes of `like`; a checkpoint of that part alone may lack it."""
    stored = Checkpoint(folder)
    bare = not any(key.startswith(prefix) for key in stored)
    names = {f"{prefix}{key}" if bare else key: key for key in stored}
    state = {
        name: stored[key].to(like[name].dtype) if name in like else stored[key]
        for name, key in names.items()
        if name.startswith(prefix) and not _IGNORED.search(name)
    }
    check_compatible(like, {str(folder): state}, "the model")
    return {name: state[name] for name in like}


def load_data(
    task: str, repository: str, subset: str | None, split: str, root: str | Path | None
) -> Any:
    """One split of a task's data set, from ``ROOT/TASK`` if that is there, else from the hub."""
    import datasets
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    chosen = root or os.environ.get("MERGELIB_DATA")
    local = Path(chosen).expanduser() / task if chosen else None
    # Versions before 4 would run a script that lies beside the data.
    options = {"trust_remote_code": False} if int(datasets.__version__.split(".")[0]) < 4 else {}
    if local is not None and (scripts := sorted(local.glob("*.py"))):
        message = f"data of task {task!r}: {scripts[0]} is a script, and scripts are not run"
        raise ValueError(f"{message}: keep data files alone in that folder")
    try:
        if local is not None and local.is_dir():
            return load_dataset(str(local), split=split, **options)
        name, _, revision = repository.partition("@")
        return load_dataset(name, subset, split=split, revision=revision or None, **options)
    except (DatasetsError, OSError, ValueError, RuntimeError) as error:
        tried = f"the hub's {repository!r}" + (f" (there is no folder {local})" if local else "")
        where = str(local) if local and local.is_dir() else tried
        message = f"data of task {task!r}: no {split!r} in {where}: {_line(error)}"
        raise ValueError(message) from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__

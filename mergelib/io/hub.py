"""Models by their names on the Hugging Face hub."""

import os
import re
from pathlib import Path

from mergelib.io.checkpoint import SUFFIXES, AnyPath
from mergelib.messages.extras import needs

_NAME = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")
# Weights, what a merged folder needs besides (`mergelib.inspection.companions`), and cards.
_ENDS = "safetensors json txt model spm jinja py tiktoken bpe codes vocab yml yaml md"
_FILES = [*(f"*.{end}" for end in _ENDS.split()), "LICEN[CS]E*", "NOTICE*", "USE_POLICY*"]


def fetch(model: AnyPath) -> Path:
    """Return a model's folder: the path itself if it exists, else a snapshot of the hub's.

    ``ORG/NAME@REVISION`` asks for a commit, tag or branch. Pickles are fetched only where there
    are no safetensors files, and no code is run. Needs huggingface_hub.

    Raises:
        ValueError: if there is no such path and the hub does not give the model.
    """
    if (path := Path(model).expanduser()).exists():
        return path
    name, _, revision = os.fspath(model).partition("@")
    with needs("hub"):
        from huggingface_hub import snapshot_download
    try:
        commit = revision or None
        folder = Path(snapshot_download(name, revision=commit, allow_patterns=_FILES))
        if not any(folder.glob("*.safetensors")):
            snapshot_download(name, revision=commit, allow_patterns=["pytorch_model*"])
    except (OSError, ValueError) as error:  # no such model or no such name, no network, no disk
        reason = " ".join(str(error).split())
        raise ValueError(
            f"model {os.fspath(model)!r} is neither a folder nor to be had from the hub: {reason}"
        ) from error
    return folder


def fetched(model: AnyPath, folder: Path | None = None) -> str:
    """Return a path below a folder; what is not there but may be a hub's name is fetched.

    Both sides of ``BASE+ADAPTER`` are such paths. A name's first part is no folder.
    """
    text, here = os.fspath(model), folder or Path()
    parts = [text] if (here / text).exists() else text.split("+")
    return "+".join(str(fetch(p) if _on_hub(p, here) else here / p) for p in parts)


def _on_hub(name: str, folder: Path) -> bool:
    path = folder / name
    named = _NAME.fullmatch(name) and path.suffix not in SUFFIXES
    return bool(named) and not path.exists() and not path.parent.exists()

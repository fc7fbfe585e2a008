"""Models by their names on the Hugging Face hub."""

import os
from pathlib import Path

from mergelib.io.checkpoint import AnyPath, names_hub_model
from mergelib.messages.extras import needs

# Endings of the files that a model needs besides its weights, and how names of licences begin.
ENDS = (
    *("json", "txt", "model", "spm", "jinja", "py", "tiktoken", "bpe", "codes", "vocab"),
    *("yml", "yaml"),
)
LICENCES = ["licence", "license", "notice", "use_policy"]
_FILES = [f"*.{end}" for end in ("safetensors", *ENDS, "md")] + [f"{n.upper()}*" for n in LICENCES]


def fetch(model: AnyPath) -> Path:
    """Return the path if it exists, else the folder of the model of this name from the hub.

    ``ORG/NAME@REVISION`` asks for a commit, tag or branch. Pickles are fetched only from
    repositories without safetensors files, and no code is run. Needs huggingface_hub.

    Raises:
        ValueError: if the path does not exist and the model cannot be fetched.
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
    """Return a path in a folder, or the path of a model that is fetched from the hub.

    A model is fetched if neither the path nor its first part exists. Both models of
    ``BASE+ADAPTER`` may be fetched.
    """
    text, here = os.fspath(model), folder or Path()
    parts = [text] if (here / text).exists() else text.split("+")
    return "+".join(str(fetch(p) if _on_hub(p, here) else here / p) for p in parts)


def _on_hub(text: str, folder: Path) -> bool:
    name = text.partition("@")[0]
    return "/" in name and not (folder / text).exists() and names_hub_model(name, folder)

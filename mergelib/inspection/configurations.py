"""Find configurations that disagree although keys and shapes are equal."""

import re
from collections.abc import Mapping, Set
from typing import Any

from mergelib.inspection.layouts import HEAD
from mergelib.messages.warned import warn

Configuration = Mapping[str, Any]

# Entries that say how a model was trained, loaded or labelled, and not what it computes. Labels,
# tokens and ties are compared by themselves.
_HARMLESS = re.compile(
    r"^_(?!class_name$)|(^|\.)(architectures|auto_map|dtype|torch_dtype|id2label|label2id|num_labels"
    r"|num_classes|label_(names|descriptions)|problem_type|finetuning_task|task_specific_params|use_cache|torchscript"
    r"|gradient_checkpointing|return_dict\w*|output_\w+|vocab_size|license|tags|pretrained_cfg"
    r"|quantization_config|initializer_\w+|init_\w+|label_smoothing|use_bfloat16|chunk_size_feed_forward)(\.|$)"
    r"|drop|version|_token_id$|_loss|loss_|^tie_word_embeddings$"
)
_KIND = re.compile(r"(^|\.)(model_type|_class_name|architecture)$")
_HEADS = re.compile(r"heads?(_kv)?$|head_dim$|multi_query|interleave|(^|[._])groups?$")
_LAYERS = re.compile(r"^(num_hidden_layers|n_layers?|num_layers|(num_)?(en|de)coder_layers|depth)$")


def check_configurations(models: Mapping[str, Mapping[str, Configuration]]) -> None:
    """Compare every model's configuration files with the first model that has each file.

    Another architecture or number of heads is a ValueError, any other difference a warning. An
    entry that only one file has counts if one version of transformers wrote both files, or if it
    concerns rotary positions; versions differ in the entries they write.
    """
    first: dict[str, tuple[str, Configuration]] = {}
    for name, files in models.items():
        for file, content in files.items():
            what, reference = first.setdefault(file, (name, content))
            differing = _differing(reference, content)
            for entry, (old, new) in differing.items():
                meaning = _KIND.search(entry) or _HEADS.search(entry)
                if meaning and None not in (old, new) and not _wrapped(entry, old, new):
                    raise ValueError(
                        f"{file} says {entry} = {new!r} in {name} and {old!r} in {what}, so equal "
                        "shapes mean different weights there: merge models of one architecture, or "
                        "correct the file that is wrong"
                    )
            if differing:
                listed = ", ".join(
                    f"{entry} = {new!r} in {name} and {old!r} in {what}"
                    for entry, (old, new) in differing.items()
                )
                warn(
                    f"{file} disagrees: {listed}; the merged weights fit at most one setting, so "
                    f"use the result with that of {what}"
                )


def _differing(one: Configuration, other: Configuration) -> dict[str, tuple[Any, Any]]:
    """Return the entries that differ, each with both values."""
    same = one.get("transformers_version") == other.get("transformers_version")
    flat = [_flat(content) for content in (one, other)]
    differing = {}
    for entry in {**flat[0], **flat[1]}:
        values = flat[0].get(entry), flat[1].get(entry)
        both = entry in flat[0] and entry in flat[1]
        comparable = both or same or "rope" in entry
        if comparable and values[0] != values[1] and not _HARMLESS.search(entry):
            differing[entry] = values
    return differing


def _flat(content: Configuration, before: str = "") -> dict[str, Any]:
    """Return entries by path, without None and default rotary positions."""
    flat: dict[str, Any] = {}
    for entry, value in content.items():
        if isinstance(value, Mapping) and not _HARMLESS.search(f"{before}{entry}"):
            inner = "" if entry == "rope_parameters" else f"{entry}."  # as older versions wrote it
            flat |= _flat(value, before + inner)
        elif not (value is None or value == "default"):
            flat[f"{before}{entry}"] = value
    return flat


def pooling_in_words(content: Configuration) -> Configuration:
    """Return a configuration with the pooling of Sentence-Transformers as version 6 writes it.

    Older versions write one entry per mode, such as ``pooling_mode_mean_tokens``.
    """
    old = {entry: on for entry, on in content.items() if entry.startswith("pooling_mode_")}
    if not old:
        return content
    modes = [entry.removeprefix("pooling_mode_") for entry, on in old.items() if on] or ["mean"]
    modes = [re.sub(r"^(cls|max|mean|weightedmean)_tokens?$", r"\1", mode) for mode in modes]
    pooling = modes[0] if len(modes) == 1 else modes
    rest = {entry: value for entry, value in content.items() if entry not in old}
    return {"pooling_mode": pooling, **rest}


def _wrapped(entry: str, old: object, new: object) -> bool:
    """Whether one architecture's name extends the other, as ``clip`` and ``clip_vision_model``."""
    one, other = sorted((str(old), str(new)), key=len)
    return _KIND.search(entry) is not None and other.startswith(f"{one}_")


def check_dropped(files: Mapping[str, Configuration], dropped: Set[str]) -> None:
    """Raise ``ValueError`` if layers are left out that the reference's configuration requires."""
    config = files.get("config.json", {})
    counts = {e: n for e, n in config.items() if _LAYERS.search(e) and isinstance(n, int)}
    for key in sorted(dropped):
        number = re.search(r"\.(\d+)\.", key)
        for entry, count in counts.items():
            if number and int(number[1]) < count:
                raise ValueError(
                    f"missing='skip' would leave out {key!r}, and config.json says {entry} = "
                    f"{count}, so the layer would be random: leave it out of the merge with "
                    "exclude=, which keeps the tensors of the pretrained model, else of the first "
                    "expert"
                )
        if HEAD.search(key) and config.get("tie_word_embeddings") is False:
            raise ValueError(
                f"missing='skip' would leave out {key!r}, and config.json says tie_word_embeddings "
                "= False, so it would be random: leave it out of the merge with exclude="
            )

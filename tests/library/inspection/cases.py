"""Tiny model folders, as transformers writes them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

BERT: dict[str, Any] = {
    "vocab_size": 12,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": 8,
}
LLAMA: dict[str, Any] = {
    "vocab_size": 12,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 8,
}


def make_bert(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A classifier, saved to a folder."""
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(
        transformers.BertConfig(**{**BERT, **changes})
    )
    return save(model, folder, seed)


def make_llama(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A language model, saved to a folder."""
    torch.manual_seed(0)
    return save(
        transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**LLAMA, **changes})),
        folder,
        seed,
    )


def save(model: Any, folder: Path, seed: int) -> Path:
    """The model, moved a little from where it began."""
    torch.manual_seed(1 + seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1e-3 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return folder


def edit(file: Path, **changes: Any) -> None:
    """Change entries of a JSON file, which is made if there is none; None removes one."""
    content = json.loads(file.read_text()) if file.exists() else {}
    content = {k: v for k, v in {**content, **changes}.items() if v is not None}
    file.write_text(json.dumps(content))

"""Descriptions of BERT and GPT-2 in transformers, without cross-attention."""

from typing import Any

from mergelib.structure.trace import Features, Scope, describes

BERT = "transformers.models.bert.modeling_bert"
GPT2 = "transformers.models.gpt2.modeling_gpt2"


@describes(f"{BERT}.BertEmbeddings")
def _bert_embeddings(tables: Any, scope: Scope, x: Features | None) -> Features | None:
    x = scope("word_embeddings", None)
    x = scope.add(x, scope("position_embeddings", None))
    x = scope.add(x, scope("token_type_embeddings", None))
    return scope.chain(x, "LayerNorm")


@describes(f"{BERT}.BertSelfAttention", f"{BERT}.BertSdpaSelfAttention")
def _bert_attention(attention: Any, scope: Scope, x: Features | None) -> Features:
    heads, size = attention.num_attention_heads, attention.attention_head_size
    query, key, value = scope.attention(heads, size)
    scope("query", x, out=query)
    scope("key", x, out=key)
    scope("value", x, out=value)
    return value


@describes(f"{BERT}.BertLayer")
def _bert_layer(layer: Any, scope: Scope, x: Features | None) -> Features | None:
    """The norms follow the additions; both belong to the modules called ``output``."""
    mixed = scope.chain(x, "attention.self", "attention.output.dense")
    x = scope("attention.output.LayerNorm", scope.add(x, mixed))
    x = scope.add(x, scope.chain(x, "intermediate.dense", "output.dense"))
    return scope.chain(x, "output.LayerNorm")


@describes(f"{BERT}.BertModel")
def _bert(bert: Any, scope: Scope, x: Features | None) -> tuple[Features | None, ...]:
    """Return the token stream and, if there is a pooler, the pooled first token."""
    x = scope.chain(x, "embeddings", "encoder.layer")
    return (x,) if bert.pooler is None else (x, scope("pooler.dense", x))


@describes(
    f"{BERT}.BertForSequenceClassification",
    f"{BERT}.BertForMultipleChoice",
    f"{BERT}.BertForTokenClassification",
)
def _bert_classifier(model: Any, scope: Scope, x: Features | None) -> Features | None:
    return scope.chain(scope("bert", x)[-1], "classifier")


@describes(f"{BERT}.BertForMaskedLM")
def _bert_masked(model: Any, scope: Scope, x: Features | None) -> Features | None:
    x = scope("bert", x)[0]
    head = "cls.predictions"
    x = scope.chain(x, f"{head}.transform.dense", f"{head}.transform.LayerNorm", f"{head}.decoder")
    scope.declare(f"{head}.bias", ("write", x))
    return x


@describes("transformers.pytorch_utils.Conv1D")
def _transposed_linear(
    layer: Any, scope: Scope, x: Features | None, out: Features | None = None
) -> Features:
    """A linear layer whose weight is stored as (inputs, outputs)."""
    out = out or scope.units(layer.nf)
    scope.declare("weight", ("read", x), ("write", out))
    scope.declare("bias", ("write", out))
    return out


@describes(f"{GPT2}.GPT2Attention", f"{GPT2}.GPT2SdpaAttention")
def _gpt2_attention(attention: Any, scope: Scope, x: Features | None) -> Features | None:
    query, key, value = scope.attention(attention.num_heads, attention.head_dim)
    scope("c_attn", x, out=query + key + value)
    return scope.chain(value, "c_proj")


@describes(f"{GPT2}.GPT2Block")
def _gpt2_block(block: Any, scope: Scope, x: Features | None) -> Features | None:
    x = scope.add(x, scope.chain(x, "ln_1", "attn"))
    return scope.add(x, scope.chain(x, "ln_2", "mlp.c_fc", "mlp.c_proj"))


@describes(f"{GPT2}.GPT2Model")
def _gpt2(model: Any, scope: Scope, x: Features | None) -> Features | None:
    x = scope.add(scope("wte", None), scope("wpe", None))
    return scope.chain(x, "h", "ln_f")


@describes(f"{GPT2}.GPT2LMHeadModel", f"{GPT2}.GPT2ForSequenceClassification")
def _gpt2_headed(model: Any, scope: Scope, x: Features | None) -> Features | None:
    return scope.chain(x, "transformer", "lm_head" if hasattr(model, "lm_head") else "score")

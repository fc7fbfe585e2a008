"""Linear algebra and exact selection on tensors, without a word about models."""

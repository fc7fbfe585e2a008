"""The papers' theory as code: quantities that theorems speak of, computed on real models."""

"""Studies: what is measured over seeds, one module per paper, and what runs and keeps them."""

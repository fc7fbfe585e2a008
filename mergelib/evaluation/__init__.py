"""Tasks and suites, and the evaluation of models on them."""

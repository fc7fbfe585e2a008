"""What procedures are given: experts, data and models, read and checked once."""

"""Evaluating models on the tasks of a suite, and measuring the cost of work."""

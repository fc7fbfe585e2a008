"""Checks of models before and while they are merged, and the warnings that follow."""

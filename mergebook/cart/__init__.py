"""CART: what the paper printed, theory, measurements, and its claims."""

"""The claims of CART, and their checks."""

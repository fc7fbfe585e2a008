"""What the chapters on CART show."""

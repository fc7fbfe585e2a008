"""Networks that only SAIL's experiments train."""

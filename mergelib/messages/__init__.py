"""What users are told: what is refused and why, what is warned of, and long records in short."""

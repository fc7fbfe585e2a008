"""What the chapters on SAIL compute; one module per chapter."""

"""What the chapters on the stability framework compute; one module per chapter."""

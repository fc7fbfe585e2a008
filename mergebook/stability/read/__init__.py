"""What the chapters on the stability framework compute."""

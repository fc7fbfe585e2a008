"""What the chapters on SAIL compute."""

"""What the chapters on SAIL compute; modules by chapter."""

"""Speed and memory of merging, measured against the floor."""

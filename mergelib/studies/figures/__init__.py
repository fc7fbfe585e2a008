"""What the chapters draw more than once, or at length; one module per subject."""

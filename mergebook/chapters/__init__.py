"""What the chapters compute from result files and on live models; one module per subject."""

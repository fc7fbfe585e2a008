"""What was measured: its provenance and cost, written, read and summarised."""

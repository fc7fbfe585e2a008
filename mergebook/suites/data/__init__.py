"""Where raw data come from: prepared files, downloads, the hub, drawn glyphs, texts."""

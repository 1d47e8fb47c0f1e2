"""Whatever is written to be read back: files and folders, whole or not at all."""

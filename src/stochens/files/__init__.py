"""What is written to disk: whole folders, checksums, checkpoints."""

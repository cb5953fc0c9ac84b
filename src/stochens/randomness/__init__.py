"""Random numbers that depend only on what they are for."""

"""An approximate posterior: what it is, what it predicts, how it is saved, joined and exported."""

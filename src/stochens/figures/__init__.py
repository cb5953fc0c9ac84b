"""What predictions show of themselves, and how it is drawn."""

"""The page of one or several runs, a file of its own."""

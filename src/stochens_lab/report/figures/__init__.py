"""Every figure, drawn by matplotlib: for files, and for the page as SVG in its own colours."""

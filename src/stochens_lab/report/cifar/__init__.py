"""The CIFAR rows: tables, figures, claims and their part of the page."""

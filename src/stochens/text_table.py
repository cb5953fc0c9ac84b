"""Tables as plain text, for terminals, notebooks and logs."""

import textwrap
from collections.abc import Sequence

GAP = "  "  # between two columns


def text_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Rows under their heads: the first `left` columns to the left, the others to the right. A cell
    may have several lines.

    >>> print(text_table(["", "mine"], [["accuracy", "0.9"], ["NLL", "0.31"]]))
              mine
    --------------
    accuracy   0.9
    NLL       0.31
    """
    lines = [[cell.split("\n") for cell in row] for row in (heads, *rows)]
    widths = [max(len(line) for row in lines for line in row[k]) for k in range(len(heads))]
    rule = "-" * (sum(widths) + len(GAP) * (len(widths) - 1))
    first, *rest = ["\n".join(_lines(row, widths, left)) for row in lines]
    return "\n".join([first, rule, *rest])


def _lines(row: list[list[str]], widths: list[int], left: int) -> list[str]:
    found = []
    for k in range(max(len(cell) for cell in row)):
        cells = [cell[k] if k < len(cell) else "" for cell in row]
        placed = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        found.append(GAP.join(placed).rstrip())
    return found


def folded(text: str, width: int) -> str:
    """In lines of at most so many characters, broken between words where that is possible.

    >>> folded("a long name", 6)
    'a long\\nname'
    """
    return "\n".join(textwrap.wrap(text, width))

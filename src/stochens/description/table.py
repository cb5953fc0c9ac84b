"""The description of a network as an object that prints as a table."""

import dataclasses
from collections.abc import Sequence

from stochens.description.layers import ITSELF, LayerRow
from stochens.methods.partial import told
from stochens.text_table import text_table

UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Description:
    """A row for each layer (`LayerRow`), and what holds for all of them. It prints as a table;
    pandas.DataFrame(description.rows) has it as a data frame.

    >>> import stochens
    >>> told = stochens.describe(stochens.MLP(2, 10, 2), "dropout", members=10)
    >>> told.rows[0].noise, told.member_bytes, told.total_bytes
    ('dropout 0.1 on outputs', 208, 2080)
    """

    rows: tuple[LayerRow, ...]
    method: str
    members: int
    runs: str
    shared_bytes: int  # frozen parameters and buffers, held once for all members
    other_bytes: int = 0  # beside parameters, as the low-rank part of SWAG
    dropout_off: tuple[str, ...] = ()  # the network's own layers that predictions turn off
    dropout_on: tuple[str, ...] = ()  # and those that `keep_dropout` keeps on
    calibration: str = ""  # the temperature of predictions, where one was fitted

    @property
    def member_bytes(self) -> int:
        """Of one member's own parameters."""
        return sum(row.bytes for row in self.rows)

    @property
    def total_bytes(self) -> int:
        """Of all members' parameters, and of what they share."""
        return self.members * self.member_bytes + self.shared_bytes + self.other_bytes

    @property
    def unreached(self) -> tuple[str, ...]:
        """The parameters without noise that no option leaves out, by their names."""
        return tuple(
            name if row.path == ITSELF else f"{row.path}.{name}"
            for row in self.rows
            if row.unreached
            for name in row.without_noise
        )

    def __repr__(self) -> str:
        cells = [
            [
                *(path, kind if count == 1 else f"{count} x {kind}", row.noise, row.notes),
                *(f"{count * row.parameters:,}", f"{count * row.frozen:,}"),
                in_units(count * row.bytes),
            ]
            for path, kind, count, row in alike_together(self.rows)
        ]
        heads = ["layer", "kind", "noise", "notes", "parameters", "frozen", "a member"]
        empty = {k for k in (3, 5) if all(row[k] in ("", "0") for row in cells)}
        used = [k for k in range(len(heads)) if k not in empty]
        chosen = [[row[k] for k in used] for row in (heads, *cells)]
        table = text_table(chosen[0], chosen[1:], left=4 - (3 in empty))
        return "\n".join([table, "", *self._lines()])

    def _lines(self) -> list[str]:
        extra = f" + {in_units(self.other_bytes)} beside them" if self.other_bytes else ""
        found = [
            f"method: {self.method}",
            f"bytes: {self.members} members x {in_units(self.member_bytes)}{extra} + "
            f"{in_units(self.shared_bytes)} shared = {in_units(self.total_bytes)}",
            f"runs by: {self.runs}",
        ]
        if self.calibration:
            found.append(f"calibration: {self.calibration}")
        for what, names in (
            ("without noise, and no option says so", self.unreached),
            ("own dropout, off in predictions", self.dropout_off),
            ("own dropout, kept on", self.dropout_on),
        ):
            if names:
                found.append(f"{what}: {told(names)}")
        return found


def alike_together(rows: Sequence[LayerRow]) -> list[tuple[str, str, int, LayerRow]]:
    """(path, kind, how many, the first of them): layers of blocks that are numbered one after the
    other, and are the same but for that number, are one row, "blocks.0-11.mlp"."""
    groups: list[list[LayerRow]] = []
    for row in rows:
        group = next((g for g in groups if _continues(g, row)), None)
        if group is None:
            groups.append([row])
        else:
            group.append(row)
    found = []
    for group in groups:
        path, last = group[0].path, group[-1].path
        if len(group) > 1:
            k = _differ(path, last)[0]
            parts = path.split(".")
            parts[k] += f"-{last.split('.')[k]}"
            path = ".".join(parts)
        found.append((path, group[0].kind, len(group), group[0]))
    return found


def _continues(group: list[LayerRow], row: LayerRow) -> bool:
    if row._replace(path="") != group[0]._replace(path=""):
        return False
    places = _differ(group[-1].path, row.path)
    if len(places) != 1 or (len(group) > 1 and places != _differ(group[0].path, group[1].path)):
        return False
    one, two = (path.split(".")[places[0]] for path in (group[-1].path, row.path))
    return one.isdecimal() and two.isdecimal() and int(two) == int(one) + 1


def _differ(one: str, two: str) -> list[int]:
    """At which of their parts two paths differ; none where they have different numbers of them."""
    a, b = one.split("."), two.split(".")
    return [k for k in range(len(a)) if a[k] != b[k]] if len(a) == len(b) else []


def in_units(size: float) -> str:
    """Bytes in words, in steps of 1000.

    >>> in_units(999), in_units(12_345), in_units(3.2e9)
    ('999 B', '12.3 kB', '3.2 GB')
    """
    for unit in UNITS[:-1]:
        if size < 999.5:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} {UNITS[-1]}"

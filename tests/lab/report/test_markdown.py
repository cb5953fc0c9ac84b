"""Tables as text: every number of metrics.json, in its row and column."""

from tests.lab.report.sample import sample_run

from stochens_lab.report import markdown


def test_every_number_stands_in_its_row_and_column(tmp_path):
    run = sample_run(tmp_path / "run")
    text = markdown.format_run(run)
    assert text.startswith(f"`{run.about['command']}`\n")
    for set_name, rows in run.metrics.items():
        part = text.split(f"## {set_name}\n")[1].split("\n## ")[0]
        head, _, *lines = [line for line in part.splitlines() if line.startswith("|")]
        columns = [cell.strip() for cell in head.split("|")[2:-1]]
        assert len(lines) == len(rows)
        for line, (method, row) in zip(lines, rows.items(), strict=True):
            name, *cells = [cell.strip() for cell in line.split("|")[1:-1]]
            assert name == method
            at = columns.index("variance (10⁻²), in domain")
            found = row["in"]["variance"]
            low, high = 100 * found["low"], 100 * found["high"]
            assert cells[at] == f"{100 * found['value']:.2f} ({low:.2f} to {high:.2f})"

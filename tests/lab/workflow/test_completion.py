"""What TAB offers."""

import pytest
from typer.testing import CliRunner

from stochens_lab.cli import app


@pytest.fixture
def tab(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def press(line: str) -> list[str]:
        words = line.split()
        env = {
            "_STOCHENS_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - (not line.endswith(" "))),
        }
        return CliRunner().invoke(app, [], env=env, prog_name="stochens").output.split()

    return press


def test_commands_methods_and_runs(tab, tmp_path):
    for run in ("runs/one", "runs/two", "three"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "run.json").touch()
    (tmp_path / "runs" / "other").mkdir()
    assert tab("stochens pred") == ["predict"]
    assert tab("stochens fit --method d") == ["dropout", "dropconnect"]
    assert tab("stochens fit --likelihood g") == ["gaussian"]
    assert tab("stochens fit --engine c") == ["compile"]
    assert tab("stochens predict ru") == ["runs/one", "runs/two"]
    assert tab("stochens evaluate runs/t") == ["runs/two"]
    assert tab("stochens compare th") == ["three"]
    assert tab("stochens fit --resume runs/o") == ["runs/one"]

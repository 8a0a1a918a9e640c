"""What every command shows."""

from pathlib import Path

import pytest
from rich.table import Table

from aiokvoffload.cli.shell import show


def wide_table() -> Table:
    table = Table()
    for number in range(30):
        table.add_column(f"figure {number}")
    table.add_row(*[f"{number / 7:.6f}" for number in range(30)])
    return table


def test_no_figure_is_cut_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    show(wide_table(), "{}", None)
    shown = capsys.readouterr().out
    assert "4.142857" in shown
    assert "…" not in shown


def test_a_width_that_was_asked_for_is_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    show(wide_table(), "{}", None)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60


def test_json_on_standard_output_stands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    show(wide_table(), '{"a": 1}', Path("-"))
    assert capsys.readouterr().out == '{"a": 1}\n'

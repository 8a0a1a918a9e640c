"""What every command shows."""

from pathlib import Path
from unittest.mock import Mock

import pytest
from rich.table import Table

from aiokvoffload.cli.shell import check_writable, show
from aiokvoffload.errors import ArgumentError


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


def test_a_file_that_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text("[]")
    check_writable(old)
    check_writable(new)
    assert (old.read_text(), new.exists()) == ("[]", False)
    check_writable(Path("/dev/null"))


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_a_file_that_cannot_be_made_is_found_out_before_the_work(option: str) -> None:
    """Root may write everywhere by permission; this file system takes no files."""
    with pytest.raises(ArgumentError, match=f"^{option} /sys/x.json: .*: name a file in another folder$"):
        check_writable(Path("/sys/x.json"), option=option)


def test_figures_replace_those_of_before_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "figures.json"
    file.write_text("[]")
    file.chmod(0o640)
    show(wide_table(), '{"a": 1}', file)
    assert (file.read_text(), file.stat().st_mode & 0o777) == ('{"a": 1}\n', 0o640)
    monkeypatch.setattr("os.replace", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(ArgumentError, match=rf"^--json {file} cannot be written: No space left on device$"):
        show(wide_table(), '{"b": 2}', file)
    assert (file.read_text(), list(tmp_path.iterdir())) == ('{"a": 1}\n', [file])


def test_what_a_link_leads_to_is_replaced_and_not_the_link(tmp_path: Path) -> None:
    file, link = tmp_path / "figures.json", tmp_path / "latest.json"
    file.write_text("[]")
    link.symlink_to(file)
    show(wide_table(), '{"a": 1}', link)
    assert (link.is_symlink(), file.read_text()) == (True, '{"a": 1}\n')


def test_a_device_that_is_full_says_which_it_was() -> None:
    with pytest.raises(ArgumentError, match=r"^--json /dev/full cannot be written: No space left on device$"):
        show(wide_table(), "{}", Path("/dev/full"))

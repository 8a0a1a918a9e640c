"""Costs between processes: what is kept, and what is not believed."""

import logging
from pathlib import Path

import pytest

from aiokvoffload.copy.costs import CopyCosts, DirectionCosts, read_costs, write_costs

COSTS = CopyCosts(
    device_name="H",
    store=DirectionCosts(
        bytes_per_s=5e10,
        short_run_s=1e-6,
        long_run_s=5e-7,
        host_run_s=4e-7,
        slot_run_s=3e-7,
        kernel_bytes_per_s=4e10,
    ),
    load=DirectionCosts(
        bytes_per_s=4e10,
        short_run_s=2e-6,
        long_run_s=6e-7,
        host_run_s=3e-7,
        slot_run_s=2e-7,
        kernel_bytes_per_s=3e10,
    ),
)


def test_what_is_written_is_read_again_for_the_same_device_only(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    assert read_costs(path, "H") is None
    write_costs(path, COSTS)
    assert read_costs(path, "H") == COSTS
    assert read_costs(path, "another") is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"store": 1, "load": 2}', '{"store": {"x": 1}, "load": {}}', "nan"])
def test_a_file_that_makes_no_sense_is_measured_anew_with_a_warning(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text)
    with caplog.at_level(logging.WARNING):
        assert read_costs(path, "H") is None
    assert "measuring anew" in caplog.text


def test_a_file_that_cannot_be_written_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        write_costs(tmp_path / "none" / "costs.json", COSTS)
    assert "cannot be written" in caplog.text


def test_the_costs_of_a_run_depend_on_its_size() -> None:
    assert COSTS.store.runs_s(10, 10 << 10) == pytest.approx(10e-6)
    assert COSTS.store.runs_s(10, 10 << 20) == pytest.approx(5e-6)

"""A disk tier that is killed with kill -9 comes back with nothing wrong (faults 36 and 43)."""

import subprocess
import sys
from pathlib import Path

from aiokvoffload.testing.kill import WAYS, kill_rounds, summary


def test_a_tier_that_is_killed_twenty_times_in_every_way_loses_no_slot_and_returns_no_wrong_byte(
    tmp_path: Path,
) -> None:
    rounds = list(kill_rounds(tmp_path / "disk", range(20)))
    assert [done for done in rounds if not done.is_right] == []
    figures = summary(rounds)
    assert figures["ways"] == {done.way: 3 + (index < 2) for index, done in enumerate(rounds[: len(WAYS)])}
    assert figures["recovered"]
    assert max(done.open_s for done in rounds) < 1


def test_who_is_killed_and_who_looks_do_without_torch() -> None:
    code = "import sys, aiokvoffload.testing.kill; sys.exit('torch' in sys.modules or 'pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603

import hypothesis.strategies as st
from hypothesis import given

from aiokvoffload.base import ReqContext
from aiokvoffload.config import GroupConfig
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.cpu.manager import CPUOffloadingManager
from aiokvoffload.tiering.presence import Presence, count_leading
from tests.service.conftest import keys_of
from tests.tiering.test_tiering_manager import Facts

KEYS = keys_of(600)


@given(st.sets(st.integers(0, 599)), st.sets(st.integers(0, 599)), st.sets(st.integers(0, 599)))
def test_the_leading_keys_that_are_somewhere_are_counted_however_they_are_spread(
    here: set[int], below: set[int], further_below: set[int]
) -> None:
    primary = CPUOffloadingManager([PoolShape((0,), 4096, 600)], groups=[GroupConfig()])
    if here:
        prepared = primary.prepare_store([KEYS[index] for index in sorted(here)], ReqContext("writer"))
        assert prepared is not None
        primary.complete_store(prepared.token)
    tiers = [Facts("disk"), Facts("store")]
    for tier, indices in zip(tiers, (below, further_below), strict=True):
        tier.keys.update(KEYS[index] for index in indices)
    presence = Presence(primary, tiers)
    anywhere = here | below | further_below
    expected = next(index for index in range(601) if index not in anywhere)
    assert len(presence.find_leading(KEYS)) == expected
    assert [key in presence for key in KEYS[:8]] == [index in anywhere for index in range(8)]


def test_what_stands_behind_the_first_no_is_not_asked_for() -> None:
    asked = []

    def answer(index: int) -> bool:
        asked.append(index)
        return index < 2

    assert count_leading(map(answer, range(10))) == 2
    assert asked == [0, 1, 2]

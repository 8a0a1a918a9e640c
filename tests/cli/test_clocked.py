from unittest.mock import Mock

import pytest

from aiokvoffload.base import OffloadingManager, ReqContext
from aiokvoffload.cli.clocked import ManagerClock

CTX = ReqContext("r")


@pytest.fixture
def manager() -> Mock:
    return Mock(spec=OffloadingManager)


def test_every_method_reaches_the_manager_and_its_answer_comes_back(manager: Mock) -> None:
    manager.lookup_prefix.return_value = 3
    manager.complete_load.return_value = True
    clocked = ManagerClock().wrap(manager)
    assert clocked.lookup_prefix([], CTX) == 3
    assert clocked.complete_load(7, failed_keys=()) is True
    manager.complete_load.assert_called_once_with(7, failed_keys=())
    assert isinstance(clocked, OffloadingManager)


def test_time_adds_up_also_when_a_method_raises(manager: Mock) -> None:
    clock = ManagerClock()
    clocked = clock.wrap(manager)
    clocked.touch([], CTX)
    once = clock.spent_ns
    assert once > 0
    manager.touch.side_effect = KeyError
    with pytest.raises(KeyError):
        clocked.touch([], CTX)
    assert clock.spent_ns > once


def test_looking_at_a_manager_costs_nothing(manager: Mock) -> None:
    clock = ManagerClock()
    clock.wrap(manager).check_integrity()
    clock.wrap(manager).statistics()
    assert clock.spent_ns == 0
    assert repr(clock) == "ManagerClock(0.0 ms)"

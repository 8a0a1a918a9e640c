from aiokvoffload.base import ReqContext
from aiokvoffload.testing import ManualClock
from aiokvoffload.tiering.chain.room import RoomQueue
from aiokvoffload.tiering.chain.walk import PromotionWalk
from tests.service.conftest import keys_of
from tests.tiering.stage import settle


def walk(name: str) -> PromotionWalk:
    return PromotionWalk(keys_of(2), ReqContext(name))


async def test_walks_are_served_in_the_order_they_came_and_one_at_a_time() -> None:
    clock = ManualClock()
    room = RoomQueue(clock, 2.0)
    walks = [walk("a"), walk("b"), walk("c")]
    for each in [*walks, walks[0]]:
        room.wait(each)
    assert len(room) == 3
    served: list[PromotionWalk] = []
    walks[1].end()
    while room.serve_next(lambda each: not served.append(each)):  # type: ignore[func-returns-value]
        pass
    assert served == [walks[0], walks[2]]
    await room.aclose()


async def test_the_first_that_finds_no_room_keeps_its_place() -> None:
    room = RoomQueue(ManualClock(), 2.0)
    first, second = walk("a"), walk("b")
    room.wait(first)
    room.wait(second)
    assert not room.serve_next(lambda _: False)
    assert len(room) == 2
    await room.aclose()
    assert first.ended
    assert second.ended


async def test_nobody_waits_longer_than_the_time_out() -> None:
    clock = ManualClock()
    room = RoomQueue(clock, 2.0)
    first, second = walk("a"), walk("b")
    room.wait(first)
    await clock.wait_for_sleeper()
    clock.advance(1.0)
    room.wait(second)
    clock.advance(1.0)
    await settle()
    assert (first.ended, second.ended, room.timeouts) == (True, False, 1)
    clock.advance(1.0)
    await settle()
    assert second.ended
    assert repr(room) == "RoomQueue(0 waiting, 2 timed out)"
    await room.aclose()

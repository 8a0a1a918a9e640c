import numpy as np

from aiokvoffload.base import OffloadKey, ReqContext
from aiokvoffload.tiering.actions import Hold, Promotion
from aiokvoffload.tiering.chain.walk import PromotionWalk
from tests.service.conftest import keys_of

KEYS = keys_of(4)


def promotion(keys: list[OffloadKey]) -> Promotion:
    return Promotion("disk", 0, keys, np.arange(len(keys)))


def test_a_batch_with_a_failed_key_ends_the_walk_and_says_what_came_from_where() -> None:
    changes: list[bool] = []
    walk = PromotionWalk(KEYS, ReqContext("a"), on_change=lambda: changes.append(walk.ended))
    walk.begin(KEYS[:2])
    walk.begin(KEYS[2:3])
    assert (list(walk.rest), walk.in_flight) == (KEYS[3:], 2)
    walk.batch_ended(promotion(KEYS[:2]), ())
    walk.batch_ended(promotion(KEYS[2:3]), KEYS[2:3])
    assert (changes, walk.tier_by_key) == ([False, True], dict.fromkeys(KEYS[:2], "disk"))


def test_a_hold_ends_when_its_last_key_is_used_and_all_do_when_the_walk_is_given_up() -> None:
    released: list[Hold] = []
    walk = PromotionWalk(KEYS, ReqContext("a"), release=released.append)
    first, second = Hold(1, KEYS[:2]), Hold(2, KEYS[2:])
    walk.hold(first)
    walk.hold(second)
    walk.use(KEYS[:1])
    assert released == []
    walk.use(KEYS[:2])
    assert released == [first]
    walk.end()
    assert walk.holds  # what is on its way is wanted all the same
    walk.give_up()
    walk.give_up()
    assert (released, walk.holds) == ([first, second], False)


def test_who_does_not_use_the_keys_holds_none() -> None:
    assert not PromotionWalk(KEYS, ReqContext("a")).holds


def test_who_waits_is_told_of_what_is_skipped_and_what_it_has_is_not_brought_up() -> None:
    changes: list[int] = []
    walk = PromotionWalk(KEYS, ReqContext("a"), on_change=lambda: changes.append(walk.position))
    walk.skip(0)
    walk.skip(2)
    walk.pass_to(3)
    walk.pass_to(1)
    assert (changes, list(walk.rest)) == ([2], KEYS[3:])

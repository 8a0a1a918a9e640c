from aiokvoffload.tiering.chain.health import TierHealth


def test_failures_in_a_row_take_a_tier_out_and_the_first_reason_stands() -> None:
    health = TierHealth("disk", 2)
    health.failed("EIO")
    health.succeeded()
    health.failed("EIO")
    before = health.serving
    health.failed("ENOSPC")
    health.take_out("it hangs")
    assert (before, health.serving) == (True, False)
    assert health.reason == "2 calls in a row failed, the last one: ENOSPC"
    assert health.outages == 1


def test_a_tier_that_is_taken_back_begins_anew() -> None:
    health = TierHealth("disk", 1)
    health.failed("EIO")
    health.take_back()
    assert (health.serving, health.reason, health.outages) == (True, "", 1)
    assert repr(health) == "TierHealth('disk', serving, 1 outages)"

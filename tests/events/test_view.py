"""What a subscriber knows, and whether it knows that it knows."""

from aiokvoffload.base import EventKind, OffloadingEvent, OffloadKey, RemovalReason, make_offload_key
from aiokvoffload.events import EventRecord, GapRecord, ResidentKeys, Snapshot, TierSnapshot

A, B, C = (make_offload_key(name, 0) for name in (b"a", b"b", b"c"))


def record(
    number: int, kind: EventKind, *keys: OffloadKey, tier: str = "cpu", reason: RemovalReason | None = None
) -> EventRecord:
    return EventRecord(number, OffloadingEvent(kind, keys, tier.upper(), tier, reason))


def snapshot(number: int, *keys: OffloadKey) -> Snapshot:
    return Snapshot(number, (TierSnapshot("CPU", "cpu", (keys,)),))


def test_a_snapshot_and_what_follows_it_are_the_state() -> None:
    view = ResidentKeys()
    assert not view.is_exact
    view.load(snapshot(4, A))
    view.apply(record(3, EventKind.CLEARED))  # is in the snapshot
    view.apply(record(5, EventKind.STORED, B, C))
    view.apply(record(5, EventKind.REMOVED, A))  # of the same message
    view.apply(record(6, EventKind.REMOVED, B))
    view.apply(record(5, EventKind.STORED, B))  # came twice
    assert (view.keys("cpu"), view.sequence, view.is_exact) == ({C}, 6, True)
    assert (view.keys("disk"), list(view.tiers)) == (set(), ["cpu"])


def test_after_a_gap_it_is_not_exact_until_every_tier_is_known_again() -> None:
    view = ResidentKeys()
    for number, tier in enumerate(["cpu", "disk"]):
        view.apply(record(number, EventKind.CLEARED, tier=tier, reason=RemovalReason.RESTART))
    assert view.is_exact
    view.apply(GapRecord(2, 3))
    states = [view.is_exact]
    view.apply(record(4, EventKind.CLEARED, tier="cpu", reason=RemovalReason.RESET))
    states.append(view.is_exact)
    view.apply(record(5, EventKind.CLEARED, tier="disk", reason=RemovalReason.RESET))
    assert [*states, view.is_exact] == [False, False, True]
    view.apply(GapRecord(6, 6))
    view.load(snapshot(7, A))
    view.apply(GapRecord(6, 7))  # is in the snapshot
    assert (view.is_exact, view.keys("cpu")) == (True, {A})

"""Slots and keys by state and fate, in CPU memory and in the tiers whose own records tell them."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from aiokvoffload.cache.pool import PoolStatistics
from aiokvoffload.cpu.common import CPU_TIER
from aiokvoffload.metrics.figure import Sample, counter, gauge, only
from aiokvoffload.service.results import ServiceStatistics


class _Shelf(NamedTuple):
    """What has slots.

    Attributes:
        tier: its name.
        pools: slots by state.
        policy: of its cache.
        evicted: keys that made room.
        cleared: keys readable at a reset.
    """

    tier: str
    pools: tuple[PoolStatistics, ...]
    policy: str
    evicted: int
    cleared: int


def _shelves(service: ServiceStatistics) -> Iterator[_Shelf]:
    manager = service.manager
    yield _Shelf(CPU_TIER, manager.pools, manager.policy, manager.evicted, manager.cleared)
    for tier in service.tiers:
        # A plug-in's record says what it likes: what is there counts.
        pools = tuple(pool for pool in getattr(tier.tier, "pools", ()) if isinstance(pool, PoolStatistics))
        policy, evicted = getattr(tier.tier, "policy", ""), getattr(tier.tier, "evicted", 0)
        yield _Shelf(tier.name, pools, policy, evicted, getattr(tier.tier, "cleared", 0))


def _slots(service: ServiceStatistics) -> Iterator[Sample]:
    for shelf in _shelves(service):
        for index, pool in enumerate(shelf.pools):
            for state in ("free", "writing", "pinned", "evictable", "quarantined"):
                yield (shelf.tier, str(index), state), getattr(pool, state)


def _of_pool(value: Callable[[PoolStatistics], int]) -> Callable[[ServiceStatistics], Iterator[Sample]]:
    def read(service: ServiceStatistics) -> Iterator[Sample]:
        for shelf in _shelves(service):
            for index, pool in enumerate(shelf.pools):
                yield (shelf.tier, str(index)), value(pool)

    return read


def _stored(service: ServiceStatistics) -> Iterator[Sample]:
    # What was promoted is stored in CPU memory too.
    yield (CPU_TIER,), service.manager.stored
    for tier in service.tiers:
        yield (tier.name,), tier.cascaded


def _evicted(service: ServiceStatistics) -> Iterator[Sample]:
    return (((shelf.tier, shelf.policy), shelf.evicted) for shelf in _shelves(service))


def _cleared(service: ServiceStatistics) -> Iterator[Sample]:
    return (((shelf.tier,), shelf.cleared) for shelf in _shelves(service))


def _refused(service: ServiceStatistics) -> Iterator[Sample]:
    yield (CPU_TIER, "no_room"), service.manager.refused
    yield (CPU_TIER, "not_due"), service.manager.filtered
    for tier in service.tiers:
        yield (tier.name, "declined"), tier.refused
        yield (tier.name, "queue_full"), tier.dropped_slow
        yield (tier.name, "slots_held"), tier.dropped_held
        yield (tier.name, "closed"), tier.dropped_at_close
        told_apart = tier.dropped_slow + tier.dropped_held + tier.dropped_at_close
        yield (tier.name, "out_of_service"), tier.dropped - told_apart


def _failed(service: ServiceStatistics) -> Iterator[Sample]:
    yield (CPU_TIER, "store"), service.manager.failed_stores
    yield (CPU_TIER, "load"), service.manager.failed_loads
    for tier in service.tiers:
        yield (tier.name, "cascade"), tier.failed_stores
        yield (tier.name, "promotion"), tier.failed_loads


def _corrupt(service: ServiceStatistics) -> Iterator[Sample]:
    return (((tier.name,), tier.corrupt) for tier in service.tiers)


def _held(service: ServiceStatistics) -> Iterator[Sample]:
    yield ("load",), service.manager.loads_in_flight
    yield ("store",), service.manager.stores_in_flight


def _host_memory(service: ServiceStatistics) -> Iterator[Sample]:
    workers = service.workers
    yield ("configured",), sum(worker.pool_bytes for worker in workers)
    yield ("ready",), sum(worker.ready_bytes for worker in workers)
    yield ("pinned",), sum(worker.pinned_bytes for worker in workers)


MEMORY_FIGURES = (
    gauge(
        "slots",
        "Slots by state; the states of a pool add up to its capacity. A slot has a chunk of each worker.",
        _slots,
        labels=("tier", "pool", "state"),
    ),
    gauge("slot_capacity", "Slots that there are.", _of_pool(lambda pool: pool.capacity), labels=("tier", "pool")),
    gauge(
        "growing_slots",
        "Slots whose memory is still to come; no part of the capacity.",
        _of_pool(lambda pool: pool.growing),
        labels=("tier", "pool"),
    ),
    gauge(
        "host_memory_bytes",
        "Memory for slots over all workers: configured, ready of that, and pinned of that.",
        _host_memory,
        labels=("state",),
    ),
    gauge(
        "staging_bytes",
        "GPU memory of the rings between a copy's stages.",
        only(lambda s: sum(worker.staging_bytes for worker in s.workers)),
    ),
    gauge("prepared", "Loads and stores that hold slots now.", _held, labels=("direction",)),
    counter(
        "stored_keys_total", "Keys that became readable; promoted ones are stored in cpu.", _stored, labels=("tier",)
    ),
    counter("evicted_keys_total", "Keys that made room for others.", _evicted, labels=("tier", "policy")),
    counter(
        "refused_keys_total",
        "Keys that a tier was to keep and does not: no_room; not_due (not offered often enough yet); declined (by a "
        "tier: no room there); queue_full (the tier does not keep up); slots_held (too many slots held for it, or too "
        "late); closed (the close had no time for them); out_of_service (with resets).",
        _refused,
        labels=("tier", "reason"),
    ),
    counter("failed_keys_total", "Keys that could not be written or read.", _failed, labels=("tier", "direction")),
    counter(
        "corrupt_keys_total",
        "Keys that were read and were not what had been stored; a miss.",
        _corrupt,
        labels=("tier",),
    ),
    counter("cleared_keys_total", "Keys that were readable at a reset.", _cleared, labels=("tier",)),
    counter("resets_total", "Resets of CPU memory.", only(lambda s: s.manager.resets)),
)

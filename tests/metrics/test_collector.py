"""The collector in a registry of `prometheus_client`, asked from its threads."""

import asyncio
import threading
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from aiokvoffload.errors import ArgumentError, ModeError
from aiokvoffload.metrics import MetricsCollector
from aiokvoffload.metrics.catalogue import FIGURES
from tests.forked import Forks, without
from tests.metrics.scene import BLOCK_BYTES, make_service, parsed, used_service, value


def registered(collector: MetricsCollector) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(collector)
    return registry


async def test_a_thread_is_given_a_snapshot_that_the_loop_took() -> None:
    """The owner's thread reads what it owns: nothing can change while it is read (fault 52)."""
    asked_on: set[threading.Thread] = set()
    async with used_service() as service:
        inner = service.statistics

        def statistics() -> Any:
            asked_on.add(threading.current_thread())
            return inner()

        service.statistics = statistics  # type: ignore[method-assign]
        registry = registered(MetricsCollector(service))
        text = await asyncio.to_thread(generate_latest, registry)
        assert value(parsed(text.decode()), "transfer_bytes_total", tier="cpu", direction="load") == 4 * BLOCK_BYTES
        assert value(parsed(generate_latest(registry).decode()), "open") == 1  # and on the loop itself
    assert asked_on == {threading.current_thread()}


async def test_registering_asks_for_names_and_not_for_values() -> None:
    async with make_service() as service:
        collector = MetricsCollector(service)
        registry = registered(collector)
        assert "0 collections" in repr(collector)
        with pytest.raises(ValueError, match="Duplicated"):
            registry.register(MetricsCollector(service))


async def test_a_service_that_is_not_open_has_families_without_values() -> None:
    service = make_service()
    families = list(MetricsCollector(service).collect())
    assert len(families) == len(FIGURES)
    assert not [sample for family in families for sample in family.samples]
    await service.aclose()


def test_after_the_end_of_its_loop_the_last_values_are_there() -> None:
    """Fault 52: a registry outlives a service, and must not be made to fail by it."""

    async def main() -> MetricsCollector:
        async with make_service() as service:
            collector = MetricsCollector(service)
            list(collector.collect())
            return collector

    collector = asyncio.run(main())
    assert value(list(collector.collect()), "open") == 1
    assert "1 unanswered" in repr(collector)


async def test_a_blocked_loop_makes_a_scrape_stale_and_not_late_for_ever() -> None:
    async with make_service() as service:
        collector = MetricsCollector(service, timeout_s=0.01)
        list(collector.collect())
        found: list[float] = []
        thread = threading.Thread(target=lambda: found.append(value(list(collector.collect()), "open")))
        thread.start()
        thread.join()  # the loop is blocked by this test meanwhile
        assert found == [1]
        assert "1 unanswered" in repr(collector)


def test_a_collector_without_a_loop_is_refused() -> None:
    with pytest.raises(ModeError, match="running loop"):
        MetricsCollector(object())  # type: ignore[arg-type]


async def test_statistics_that_raise_cost_a_scrape_its_news_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """Fault 52."""
    async with make_service() as service:
        collector = MetricsCollector(service)
        list(collector.collect())

        def broken() -> Any:
            raise RuntimeError("a plug-in's fault")

        service.statistics = broken  # type: ignore[method-assign]
        assert value(await asyncio.to_thread(lambda: list(collector.collect())), "open") == 1
    assert "a plug-in's fault" in caplog.text


async def test_a_record_that_lacks_something_costs_one_figure(caplog: pytest.LogCaptureFixture) -> None:
    """Fault 52: a plug-in's manager may say what it likes."""

    class Odd:
        pools = ()

    async with make_service() as service:
        whole = service.statistics()

        class Record:
            manager = Odd()

            def __getattr__(self, name: str) -> Any:
                return getattr(whole, name)

        service.statistics = Record  # type: ignore[method-assign,assignment]
        families = list(MetricsCollector(service).collect())
    assert value(families, "open") == 1
    assert not next(family for family in families if family.name == "aiokvoffload_resets").samples
    assert "aiokvoffload_resets_total could not be read" in caplog.text


def test_without_the_extra_the_error_says_what_to_install(forks: Forks) -> None:
    result = forks.run(without("prometheus_client") + "import aiokvoffload.metrics")
    assert "metrics need prometheus-client: pip install 'aiokvoffload[metrics]'" in result.stderr


async def test_a_time_that_is_none_is_named() -> None:
    with pytest.raises(ArgumentError, match="timeout_s must be at least 0 seconds, got -1"):
        MetricsCollector(object(), timeout_s=-1)  # type: ignore[arg-type]

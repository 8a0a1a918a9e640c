"""Spans of a real service, as an exporter gets them, and none where nobody traces."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode, Tracer

import aiokvoffload as kv
from aiokvoffload import tracing
from tests.forked import Forks, without
from tests.metrics.scene import BLOCK_BYTES, make_service, used_service
from tests.service.conftest import Stage, keys_of


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tracer]:
    """One that exports at once, instead of the process's own, which can be set only once."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    monkeypatch.setattr(tracing, "TRACER", tracer)
    yield tracer
    provider.shutdown()


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == f"aiokvoffload.{name}"]


def parents(spans: Sequence[ReadableSpan]) -> set[int | None]:
    return {span.parent.span_id if span.parent else None for span in spans}


async def stored(service: kv.OffloadingService, keys: Sequence[kv.OffloadKey]) -> None:
    async with service.request("stores") as request:
        await request.store(keys, range(len(keys)))
    while service.statistics().tiers[0].cascaded < len(keys):
        await asyncio.sleep(0)


async def test_a_transfer_is_under_the_span_of_the_request_that_asked_for_it(
    tracer: Tracer, exporter: InMemorySpanExporter
) -> None:
    """Two requests at once, each in a task of its own: the context variables tell them apart."""

    async def serve(service: kv.OffloadingService, name: str) -> int:
        with tracer.start_as_current_span(name) as outer:
            async with service.request(name) as request:
                await request.store(keys_of(2, name=name), [0, 1] if name == "one" else [2, 3])
                await request.load(keys_of(2, name=name), [4, 5] if name == "one" else [6, 7])
            return outer.get_span_context().span_id

    async with make_service() as service:
        await service.wait_grown()
        one, two = await asyncio.gather(serve(service, "one"), serve(service, "two"))
    for kind in ("store", "load"):
        by_request = {span.attributes["aiokvoffload.request_id"]: span for span in named(exporter, kind)}  # type: ignore[index]
        assert {name: parents([span]) for name, span in by_request.items()} == {"one": {one}, "two": {two}}


async def test_what_follows_from_a_transfer_is_under_it(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    async with used_service():
        pass
    [store], [load] = named(exporter, "store"), named(exporter, "load")
    cascades, promotions = named(exporter, "cascade"), named(exporter, "promotion")
    assert parents(cascades) == {store.context.span_id}
    assert parents(promotions) == {load.context.span_id}
    assert parents([store, load]) == {None}
    assert store.attributes == {
        "aiokvoffload.request_id": "stores",
        "aiokvoffload.keys": 4,
        "aiokvoffload.stored": 4,
        "aiokvoffload.present": 0,
        "aiokvoffload.refused": 0,
        "aiokvoffload.failed": 0,
        "aiokvoffload.bytes": 4 * BLOCK_BYTES,
    }
    assert load.attributes == {
        "aiokvoffload.request_id": "loads",
        "aiokvoffload.keys": 5,
        "aiokvoffload.served": 4,
        "aiokvoffload.failed": 1,
        "aiokvoffload.bytes": 4 * BLOCK_BYTES,
    }
    told = {(span.attributes["aiokvoffload.tier"], span.status.status_code) for span in (*cascades, *promotions)}  # type: ignore[index]
    assert told == {("memory", StatusCode.UNSET)}


async def test_a_prefetch_is_under_the_span_of_whoever_asked(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    async with make_service() as service:
        await service.wait_grown()
        await stored(service, keys_of(3))
        await service.reset(tiers=["cpu"])
        with tracer.start_as_current_span("planner") as outer:
            async with service.request("prefetches") as request:
                assert request.prefetch(keys_of(3)) == 3
        while service.statistics().tiers[0].promoted < 3:
            await asyncio.sleep(0)
    assert parents(named(exporter, "promotion")) == {outer.get_span_context().span_id}


async def test_a_failed_copy_is_a_failed_span(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    stage = Stage()
    async with stage.service as service, service.request("r") as request:
        handle = request.store(keys_of(2), [0, 1])
        stage.worker.finish(stage.worker.in_flight[0], success=False)
        await handle
    [span] = named(exporter, "store")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "the test said so")


async def test_texts_of_strangers_are_cut(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    stage = Stage()
    async with stage.service:
        await stage.fill(keys_of(1), req_id="x" * 5000)
    [span] = named(exporter, "store")
    assert span.attributes is not None
    assert span.attributes["aiokvoffload.request_id"] == "x" * tracing.MAX_TEXT


class Faulty(SpanProcessor):
    def on_start(self, *_: object, **__: object) -> None:
        raise RuntimeError("begun badly")

    def on_end(self, *_: object) -> None:
        raise RuntimeError("ended badly")


class FaultyAtItsEnd(Faulty):
    def on_start(self, *_: object, **__: object) -> None:
        pass


@pytest.mark.parametrize("processor", [Faulty, FaultyAtItsEnd])
async def test_a_tracer_that_raises_costs_its_spans_and_nothing_else(
    processor: type[SpanProcessor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 52."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor())
    monkeypatch.setattr(tracing, "TRACER", provider.get_tracer("test"))
    async with used_service() as service:  # which looks at its results itself
        service.check_integrity()


async def test_what_is_not_sampled_has_nothing_sampled_under_it(
    exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "TRACER", provider.get_tracer("test"))
    async with used_service():
        pass
    assert not exporter.get_finished_spans()


async def test_without_an_sdk_no_span_is_kept() -> None:
    """The API alone begins spans that lead nowhere."""
    assert tracing.begin("store", {}) is None
    assert tracing.begin_under(None, "cascade", {}) is None
    assert tracing.current() is None


async def test_without_a_tracer_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "TRACER", None)
    async with used_service():
        pass
    assert tracing.begin("store", {}) is None
    assert tracing.current() is None


def test_the_service_does_without_opentelemetry(forks: Forks) -> None:
    program = "import aiokvoffload.service, aiokvoffload.tracing as tracing; sys.exit(tracing.TRACER is not None)"
    assert forks.run(without("opentelemetry") + program).returncode == 0

"""What all requests share: one loop that it belongs to, and flows that are stopped a few in each pass."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aiokvoffload.device.host import HostStream
from aiokvoffload.errors import ModeError, TransferError
from aiokvoffload.service import Handle, LoadResult, Request, backend
from tests.service.conftest import Stage, keys_of

_NUM_LOADS = 40


@pytest.fixture
def one_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "PASS_S", 0.0)


async def _load_often(stage: Stage, request: Request) -> list[Handle[LoadResult]]:
    """Loads, of which the first has all the room that there is."""
    keys = keys_of(4)
    loads = [request.load(keys, range(4)) for _ in range(_NUM_LOADS)]
    while not stage.worker.in_flight:
        await asyncio.sleep(0)
    return loads


@pytest.mark.usefixtures("one_a_pass")
async def test_a_reset_voids_all_transfers_at_once_and_ends_them_one_after_the_other() -> None:
    """I3, I10, fault 53."""
    stage, stream = Stage(max_jobs_in_flight=1), HostStream("test")
    async with stage.service as service:
        await stage.fill(keys_of(4))
        async with service.request("many") as request:
            loads = await _load_often(stage, request)
            resetting = asyncio.ensure_future(service.reset())
            await asyncio.sleep(0)
            assert sum(load.done() for load in loads) <= 2
            with pytest.raises(TransferError, match="4 keys cannot be served"):
                await loads[0].fence(stream)  # it runs, and has not been stopped
            await resetting
            assert all(load.done() for load in loads[1:]), "there is no room for another job, and none is needed"
            stage.worker.finish_all()
            for load in loads:
                assert (await load).served == 0
                assert "reset" in (await load).error
    await asyncio.to_thread(stream.close)


@pytest.mark.usefixtures("one_a_pass")
async def test_nothing_of_before_a_reset_is_submitted_after_it() -> None:
    """I3: it would be served what is stored since, behind what was there before."""
    stage = Stage(max_jobs_in_flight=1)
    async with stage.service as service:
        await stage.fill(keys_of(4))
        async with service.request("many") as request, service.request("later") as later:
            loads = await _load_often(stage, request)
            resetting = asyncio.ensure_future(service.reset())
            await asyncio.sleep(0)
            stage.worker.finish_all()  # now there is room, also for those that have not been told
            await loads[0]
            store = later.store(keys_of(4), range(4, 8))
            submitted = len(stage.worker.submitted)
            stage.worker.finish_all()
            assert (await store).stored == 4
            await resetting
            for load in loads:
                await load
            assert len(stage.worker.submitted) == submitted


@pytest.mark.usefixtures("one_a_pass")
async def test_an_abort_submits_nothing_more_while_its_transfers_end_one_after_the_other() -> None:
    """I2, I10."""
    stage = Stage(max_jobs_in_flight=1)
    async with stage.service as service:
        await stage.fill(keys_of(4))

        async def abort() -> None:
            async with service.request("many") as request:
                loads.extend(await _load_often(stage, request))
                raise ValueError("aborted")

        loads: list[Handle[LoadResult]] = []
        aborting = asyncio.ensure_future(abort())
        while not loads:
            await asyncio.sleep(0)
        submitted = len(stage.worker.submitted)
        for _ in range(3):
            await asyncio.sleep(0)
        assert not all(load.done() for load in loads[1:])
        stage.worker.finish_all()  # now there is room for the others
        with pytest.raises(ValueError, match="aborted"):
            await aborting
        assert len(stage.worker.submitted) == submitted
        assert [(await load).served for load in loads] == [4] + [0] * (_NUM_LOADS - 1)
        assert service.statistics().waiting_flows == 0


@pytest.mark.usefixtures("one_a_pass")
async def test_a_close_ends_waiting_transfers_one_after_the_other() -> None:
    stage = Stage(max_jobs_in_flight=1)
    async with stage.service as service:
        await stage.fill(keys_of(4))
        request = service.request("many")
        await request.__aenter__()
        loads = await _load_often(stage, request)
        closing = asyncio.ensure_future(service.aclose())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not all(load.done() for load in loads[1:])
        stage.worker.finish_all()
        await closing
        assert [(await load).served for load in loads[1:]] == [0] * (_NUM_LOADS - 1)
        assert service.statistics().waiting_flows == 0
        await request.__aexit__(None, None, None)


_CALLS: dict[str, Callable[[Stage, Request], Awaitable[Any]]] = {
    "aclose": lambda stage, _: stage.service.aclose(),
    "reset": lambda stage, _: stage.service.reset(),
    "wait_grown": lambda stage, _: stage.service.wait_grown(),
    "request": lambda stage, _: stage.service.request("elsewhere").__aenter__(),
    "leaving": lambda _, request: request.__aexit__(None, None, None),
}


@pytest.mark.parametrize("call", _CALLS.values(), ids=_CALLS)
async def test_another_loop_is_refused_and_changes_nothing(
    stage: Stage, call: Callable[[Stage, Request], Awaitable[Any]]
) -> None:
    async with stage.service as service:
        await stage.fill(keys_of(2))
        async with service.request("home") as request:

            async def elsewhere() -> None:
                with pytest.raises(ModeError, match="the loop that opened it"):
                    await call(stage, request)

            await asyncio.to_thread(asyncio.run, elsewhere())
            load = request.load(keys_of(2), range(2))
            stage.worker.finish_all()
            assert (await load).served == 2
        assert not service.closed


async def test_a_request_made_at_home_is_not_entered_elsewhere(stage: Stage) -> None:
    async with stage.service as service:
        request = service.request("home")

        async def elsewhere() -> None:
            with pytest.raises(ModeError, match="the loop that opened it"):
                await request.__aenter__()

        await asyncio.to_thread(asyncio.run, elsewhere())
        assert service.statistics().requests == 0

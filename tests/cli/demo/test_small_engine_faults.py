"""What a service may answer at a bad moment; made up here, since it takes a broken device otherwise."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import pytest

import aiokvoffload as kv
from aiokvoffload.cli.demo.engine import Engine
from aiokvoffload.device import Device, open_device
from tests.cli.demo.tiny import CONFIG, ask, paged, random_tokens


class Load:
    """A load of which so many blocks arrive, which is known at the fence or only afterwards."""

    def __init__(self, keys: Sequence[kv.OffloadKey], arriving: int, *, at_fence: bool) -> None:
        self._result = kv.LoadResult((arriving,), tuple(keys[arriving:]), (("cpu", arriving),), 0)
        self._at_fence = at_fence

    async def fence(self, _stream: object) -> None:
        if self._at_fence:
            raise kv.TransferError("evicted")

    def __await__(self) -> Any:
        yield from ()
        return self._result


class Door:
    """A request that finds everything, and of it loads so much."""

    def __init__(self, arriving: int, *, at_fence: bool, busy: bool) -> None:
        self._arriving, self._at_fence, self._busy = arriving, at_fence, busy
        self._callbacks: list[Any] = []
        self.stored: list[kv.OffloadKey] = []

    def lookup(self, keys: Sequence[kv.OffloadKey]) -> int:
        return len(keys)

    def touch(self, _keys: object) -> None: ...

    def on_released(self, callback: Any) -> None:
        self._callbacks.append(callback)

    def load(self, keys: Sequence[kv.OffloadKey], _blocks: object, **_: object) -> Load:
        if self._busy:
            raise kv.BusyError("too much waits")
        return Load(keys, self._arriving, at_fence=self._at_fence)

    def store(self, keys: Sequence[kv.OffloadKey], _blocks: object, **_: object) -> None:
        if self._busy:
            raise kv.BusyError("too much waits")
        self.stored += keys

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for callback in self._callbacks:
            callback()


class Offload:
    def __init__(self, device: Device, door: Door) -> None:
        self.device, self._door = device, door

    def request(self, _req_id: str) -> Door:
        return self._door


@pytest.mark.parametrize(("at_fence", "busy"), [(True, False), (False, False), (False, True)])
async def test_blocks_that_do_not_arrive_are_computed_whenever_that_becomes_known(at_fence: bool, busy: bool) -> None:
    """Evicted since the lookup (fault 13), failed after the fence, or refused because too much waits."""
    prompt, device = random_tokens("a prompt", 120), open_device("host")
    try:
        async with Engine(await paged(40), CONFIG, device=device) as engine:
            expected, _ = await ask(engine, prompt)
        door = Door(arriving=0, at_fence=at_fence, busy=busy)
        async with Engine(await paged(40), CONFIG, offload=Offload(device, door)) as engine:  # type: ignore[arg-type]
            answer, figures = await ask(engine, prompt)
            assert engine.statistics().pages.in_use == 0
    finally:
        device.close()
    assert (answer, figures.computed_tokens) == (expected, 120)
    assert len(door.stored) == (0 if busy else 15)

"""Every engine moves what the plan says; those for CUDA need one."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from aiokvoffload.base import GPULoadStoreSpec, Stream
from aiokvoffload.config import CopyConfig
from aiokvoffload.copy import choice
from aiokvoffload.copy.arena import HostArena
from aiokvoffload.copy.choice import choose_engine, choose_first
from aiokvoffload.copy.direction import Direction
from aiokvoffload.copy.driver_engines import DriverBatchEngine, DriverCopyEngine
from aiokvoffload.copy.engine import Lane, PartialCopyError, RunCopies, RunEngine, Step
from aiokvoffload.copy.host_engine import HostEngine
from aiokvoffload.copy.layout import lay_out
from aiokvoffload.copy.plan import CopyPlan, plan_copies
from aiokvoffload.copy.routes import make_routes
from aiokvoffload.copy.selection import Selector
from aiokvoffload.copy.torch_engine import TorchEngine, regions_of
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.device.base import Device
from aiokvoffload.device.cuda import AcceleratorDevice
from aiokvoffload.device.driver import _MemcpyAttributes
from aiokvoffload.device.open import open_device
from aiokvoffload.testing.memory import make_kv_caches
from tests.interpreter import turns_given_away


def engines_of(device: Device, kind: str, tensors: list[torch.Tensor], arena: HostArena) -> RunEngine:
    if kind == "host":
        return HostEngine(device)
    if kind == "torch":
        return TorchEngine(device, regions_of(lay_out(make_kv_caches(tensors), device.torch_device), [arena]))
    assert isinstance(device, AcceleratorDevice)
    assert device.driver is not None
    return DriverBatchEngine(device.driver) if kind == "batch" else DriverCopyEngine(device.driver)


every_engine = pytest.mark.parametrize(
    ("device_name", "kind"),
    [
        ("host", "host"),
        ("host", "torch"),
        *(pytest.param("cuda", kind, marks=pytest.mark.gpu) for kind in ("batch", "single", "torch")),
    ],
)


@every_engine
def test_an_engine_moves_every_run_there_and_back(device_name: str, kind: str) -> None:
    device = open_device(device_name)
    tensors = [torch.randint(0, 256, (16, 4096), dtype=torch.uint8, device=device.torch_device) for _ in range(3)]
    originals = [tensor.clone() for tensor in tensors]
    layout = lay_out(make_kv_caches(tensors), device.torch_device)
    pool = PoolShape((0,), 2 * 3 * 4096, 4)
    arena = HostArena(pool.num_slots, pool.row_bytes, device=device)
    selector = Selector(make_routes(layout, [pool], [arena], [2]), layout.num_physical_blocks, pool.num_slots)
    engine, stream = engines_of(device, kind, tensors, arena), device.create_stream()
    plans = []
    for direction, blocks in ((Direction.STORE, [3, 0, 9, 7]), (Direction.LOAD, [10, 11, 12, 13])):
        selection = selector.select(direction, GPULoadStoreSpec(blocks), np.array([2, 1]))
        plans.append(plan_copies(direction, selection))
        device.wait(stream, device.record())
        engine.copy(plans[-1], stream, ordered=True)
    device.record(stream).synchronize()
    for tensor, original in zip(tensors, originals, strict=True):
        assert torch.equal(tensor[10:14], original[[3, 0, 9, 7]])
    del engine
    arena.close()
    device.close()


@every_engine
def test_no_engine_says_that_it_gives_others_a_turn_and_does_not(device_name: str, kind: str) -> None:
    """I10: whoever enqueues pauses for the loop after steps that keep the interpreter, and after those only."""
    device = open_device(device_name)
    tensor = torch.zeros((8, 4096), dtype=torch.uint8, device=device.torch_device)
    arena = HostArena(8, 4096, device=device)
    engine, stream = engines_of(device, kind, [tensor], arena), device.create_stream()
    rows = np.array([0, 2, 5]) * 4096
    plan = CopyPlan(arena.address + rows, tensor.data_ptr() + rows, np.full(3, 4096), np.arange(3))
    copies = RunCopies(engine, plan, Lane(Direction.STORE, stream))
    gives_way = turns_given_away(lambda: engine.copy(plan, stream, ordered=True)) > 0
    assert list(copies.enqueue(ordered=True)) == [Step.GAVE_WAY if engine.gives_way else Step.DONE]
    assert gives_way or not engine.gives_way
    device.record(stream).synchronize()
    arena.close()
    device.close()


@pytest.mark.parametrize(("gives_way", "step"), [(True, Step.GAVE_WAY), (False, Step.DONE)])
def test_a_step_gave_way_if_its_engine_says_so(*, gives_way: bool, step: Step) -> None:
    class Engine(RunEngine):
        name = "test"

        def copy(self, plan: CopyPlan, stream: Stream, *, ordered: bool) -> None: ...

    engine, one, device = Engine(), np.array([1]), open_device("host")
    engine.gives_way = gives_way
    copies = RunCopies(engine, CopyPlan(one, one, one, one), Lane(Direction.LOAD, device.create_stream()))
    assert list(copies.enqueue(ordered=True)) == [step]
    device.close()


@pytest.mark.gpu
def test_what_the_driver_refuses_is_an_error_and_leaves_the_device_good() -> None:
    """The batched call refuses the legacy default stream: a way to be refused that touches no memory."""
    device = open_device("cuda")
    tensor = torch.zeros((1, 4096), dtype=torch.uint8, device=device.torch_device)
    torch.cuda.synchronize()  # the zeros are another stream's, and might come after the copy
    arena = HostArena(1, 4096, device=device)
    arena.rows()[:] = 7
    engine, stream = engines_of(device, "batch", [tensor], arena), device.create_stream()
    halves = np.array([0, 2048])
    plan = CopyPlan(arena.address + halves, tensor.data_ptr() + halves, np.array([2048, 2048]), np.array([0, 0]))
    with pytest.raises(PartialCopyError, match="CUDA_ERROR"):
        engine.copy(plan, torch.cuda.default_stream(), ordered=True)
    engine.copy(plan, stream, ordered=False)
    device.record(stream).synchronize()
    assert bool((tensor == 7).all())
    arena.close()
    device.close()


def test_the_batch_attributes_have_the_layout_of_the_c_structure() -> None:
    """`CUmemcpyAttributes` of cuda.h: access order, two locations of two ints, flags."""
    offsets = [getattr(_MemcpyAttributes, name).offset for name, _ in _MemcpyAttributes._fields_]
    assert (ctypes.sizeof(_MemcpyAttributes), offsets) == (24, [0, 4, 12, 20])


def test_the_host_has_its_own_engine() -> None:
    device = open_device("host")
    layout = lay_out(make_kv_caches([torch.zeros((4, 64), dtype=torch.uint8)]), device.torch_device)
    assert choose_engine(device, layout, []).name == "host"
    device.close()


def test_a_first_engine_that_nothing_betters_is_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The better one is made of the first one."""
    device = open_device("host")
    monkeypatch.setattr(device, "driver", SimpleNamespace(has_batch_copy=True), raising=False)
    monkeypatch.setattr(choice, "make_backends", lambda *_, **__: None)
    layout = lay_out(make_kv_caches([torch.zeros((4, 64), dtype=torch.uint8)]), device.torch_device)
    first, make_better = choose_first(device, layout, [], CopyConfig())
    assert first.name == "cuda-batch"
    assert make_better is not None
    assert make_better() is first
    device.close()


@pytest.mark.gpu
def test_cuda_has_the_batched_engine() -> None:
    device = open_device("cuda")
    tensor = torch.zeros((4, 64), dtype=torch.uint8, device=device.torch_device)
    layout = lay_out(make_kv_caches([tensor]), device.torch_device)
    assert choose_engine(device, layout, []).name == "auto"
    device.close()

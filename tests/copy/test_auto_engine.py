"""The choice: whatever this machine was measured to do, the job's shape decides."""

from dataclasses import replace

import numpy as np
import pytest

from aiokvoffload.base import GPULoadStoreSpec
from aiokvoffload.copy import calibration
from aiokvoffload.copy.auto_engine import AutoEngine, JobShape, shape_of
from aiokvoffload.copy.calibration import Engines, measure_costs
from aiokvoffload.copy.costs import CopyCosts, DirectionCosts
from aiokvoffload.copy.direct_engine import DirectEngine
from aiokvoffload.copy.direction import Direction
from aiokvoffload.copy.host_engine import HostEngine
from aiokvoffload.copy.host_staging import HostStaging
from aiokvoffload.copy.staged_engine import StagedEngine
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.device.host import HostDevice
from aiokvoffload.errors import ConfigError
from tests.copy.memory import Memory, caches_of

MEASURED = DirectionCosts(
    bytes_per_s=54e9,
    short_run_s=0.8e-6,
    long_run_s=0.7e-6,
    host_run_s=0.4e-6,
    slot_run_s=0.5e-6,
    kernel_bytes_per_s=50e9,
)
MIB, KIB = 1 << 20, 1 << 10


def engines_on(device: HostDevice) -> Engines:
    staged = StagedEngine(device, lambda: HostStaging(device, []))
    return Engines(HostEngine(device), staged, DirectEngine(staged))


@pytest.mark.parametrize(
    ("fragment_bytes", "slot_run_bytes", "expected"),
    [
        (2 * KIB, 2 * MIB, "staged"),
        (64 * KIB, 2 * MIB, "staged"),
        (2 * MIB, 2 * MIB, "host"),
        (2 * KIB, 64 * KIB, "direct"),
        (2 * KIB, 110 * KIB, "direct"),
        (2 * KIB, 256 * MIB, "staged"),
    ],
)
@pytest.mark.parametrize("direction", list(Direction))
def test_fragments_runs_of_slots_and_bytes_choose_the_engine(
    direction: Direction, fragment_bytes: int, slot_run_bytes: int, expected: str
) -> None:
    device = HostDevice()
    auto = AutoEngine(engines_on(device), CopyCosts(device_name="test", store=MEASURED, load=MEASURED))
    job = JobShape(256 * MIB, 256 * MIB // fragment_bytes, 256 * MIB // slot_run_bytes)
    assert auto.choose(job, direction).name == expected
    device.close()


@pytest.mark.parametrize(("slot_run_bytes", "expected"), [(110 * KIB, "direct"), (435 * KIB, "staged")])
def test_runs_far_apart_cost_more_than_those_of_the_calibration(slot_run_bytes: int, expected: str) -> None:
    """As on an H200: slots of 64 and of 256 KiB, 1.7 of them adjacent; of the former stages reach four fifths."""
    device = HostDevice()
    costs = replace(MEASURED, bytes_per_s=55e9, slot_run_s=0.05e-6, kernel_bytes_per_s=50.7e9)
    auto = AutoEngine(engines_on(device), CopyCosts(device_name="test", store=costs, load=costs))
    job = JobShape(512 * MIB, 512 * MIB // (2 * KIB), 512 * MIB // slot_run_bytes)
    assert [auto.choose(job, direction).name for direction in Direction] == [expected] * 2
    device.close()


@pytest.mark.parametrize(("host_run_s", "expected"), [(0.1e-6, "host"), (0.8e-6, "staged")])
def test_runs_that_would_keep_the_driver_from_others_are_staged(host_run_s: float, expected: str) -> None:
    device = HostDevice()
    costs = replace(MEASURED, long_run_s=0.0, host_run_s=host_run_s)
    auto = AutoEngine(engines_on(device), CopyCosts(device_name="test", store=costs, load=costs))
    assert auto.choose(JobShape(256 * MIB, 4096, 128), Direction.STORE).name == expected
    device.close()


def test_a_job_of_few_fragments_is_not_worth_a_second_stage() -> None:
    device = HostDevice()
    auto = AutoEngine(engines_on(device), CopyCosts(device_name="test", store=MEASURED, load=MEASURED))
    assert auto.choose(JobShape(64 * KIB, 8, 1), Direction.STORE).name == "host"
    device.close()


def test_the_shape_of_a_job_counts_runs_as_the_plan_will_have_them() -> None:
    memory = Memory(caches_of([16] * 2, [2048] * 2, [[(0, 2048), (1, 2048)]]), [PoolShape((0,), 8192, 8)], [2])
    selection = memory.selector.select(Direction.STORE, GPULoadStoreSpec(range(8)), np.array([3, 4, 5, 1]))
    assert shape_of(selection) == JobShape(8 * 4096, 16, 2)
    memory.close()
    single = Memory(caches_of([16], [4096], [[(0, 4096)]]), [PoolShape((0,), 8192, 8)], [2])
    selection = single.selector.select(Direction.STORE, GPULoadStoreSpec([0, 1, 2, 3, 9, 8]), np.array([3, 4, 5]))
    assert shape_of(selection) == JobShape(6 * 4096, 3, 1)
    empty = single.selector.select(Direction.STORE, GPULoadStoreSpec([]), np.array([], dtype=np.int64))
    assert shape_of(empty) == JobShape(0, 0, 0)
    single.close()


def test_calibrating_without_the_memory_for_it_is_a_clear_error_and_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: HostStaging, size_bytes: int) -> int:
        raise ConfigError(f"{size_bytes} bytes cannot be had")

    monkeypatch.setattr(calibration, "SCRATCH_BYTES", 1 << 20)
    monkeypatch.setattr(HostStaging, "allocate", refuse)
    device = HostDevice()
    with pytest.raises(ConfigError, match="cannot be had"):
        measure_costs(device, engines_on(device), name="here", programs=4)
    device.close()


def test_calibrating_measures_both_directions_and_gives_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "SCRATCH_BYTES", 1 << 20)
    device = HostDevice()
    costs = measure_costs(device, engines_on(device), name="here", programs=4)
    assert costs.device_name == "here"
    for each in (costs.store, costs.load):
        assert min(each.bytes_per_s, each.kernel_bytes_per_s) > 0
        assert min(each.short_run_s, each.long_run_s, each.slot_run_s) >= 0
        assert each.host_run_s > 0
    device.close()

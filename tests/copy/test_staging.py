"""What may be used again, and when."""

from hypothesis import given
from hypothesis import strategies as st

from aiokvoffload.base import Stream
from aiokvoffload.copy.host_staging import HostStaging
from aiokvoffload.copy.staging import UPLOAD_PAIRS, DescriptorRing, Staging
from aiokvoffload.testing import ManualDevice

CAPACITY_BYTES = 4 * UPLOAD_PAIRS * 16


def make_ring() -> tuple[ManualDevice, Stream, HostStaging, DescriptorRing]:
    device = ManualDevice()
    backend = HostStaging(device, [])
    gpu_ptr = backend.allocate(CAPACITY_BYTES)
    ring = DescriptorRing(backend, backend.allocate_descriptors(CAPACITY_BYTES, gpu_ptr), gpu_ptr)
    return device, device.create_stream(), backend, ring


def test_descriptors_are_not_written_over_before_their_last_reader_has_ended() -> None:
    """Fault 5."""
    device, stream, _, ring = make_ring()
    for _ in range(4):
        assert ring.take(UPLOAD_PAIRS) is not None
        ring.upload(stream)
        ring.give_back(stream)
    assert ring.take(1) is None
    device.step()
    pairs = ring.take(1)
    assert pairs is not None
    assert ring.take(1) is None
    device.run_all()


def test_room_at_the_end_that_is_too_small_is_skipped() -> None:
    device, stream, _, ring = make_ring()
    for count in (3 * UPLOAD_PAIRS, 2 * UPLOAD_PAIRS):
        pairs = ring.take(count)
        assert pairs is None or len(pairs) == count
        if pairs is None:
            device.run_all()
            pairs = ring.take(count)
        assert pairs is not None
        pairs[:] = count
        ring.upload(stream)
        ring.give_back(stream)
    device.run_all()


@given(st.lists(st.tuples(st.integers(1, 2 * UPLOAD_PAIRS), st.integers(0, 3)), max_size=40))
def test_no_two_uploads_under_way_share_room(uploads: list[tuple[int, int]]) -> None:
    """Each takes room, and then the device gets on by some steps; what it has not read keeps its numbers."""
    device, stream, _, ring = make_ring()
    under_way: list[tuple[object, int]] = []
    for number, (count, steps) in enumerate(uploads):
        pairs = ring.take(count)
        if pairs is not None:
            pairs[:] = number
            under_way.append((pairs, number))
            ring.upload(stream)
            ring.give_back(stream)
        for _ in range(steps):
            if device.step():
                under_way.pop(0)
        assert all((numbers == expected).all() for numbers, expected in under_way)  # type: ignore[attr-defined]
    device.run_all()


def test_staging_keeps_to_its_bytes() -> None:
    device = ManualDevice()
    for size_bytes in (512 << 10, 1 << 20, 48 << 20):
        staging = Staging(HostStaging(device, []), device.create_stream(), size_bytes=size_bytes, num_segments=2)
        assert staging.size_bytes <= size_bytes
        assert staging.segment_bytes * 2 < staging.size_bytes
        addresses = staging.upcoming(3).tolist()
        assert addresses == [staging.take().address for _ in range(3)]
        assert "2 segments" in repr(staging)
        staging.close()

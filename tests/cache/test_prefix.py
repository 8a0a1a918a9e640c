from collections.abc import Iterable, Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from aiokvoffload.base import OffloadKey, make_offload_key
from aiokvoffload.cache.prefix import longest_common_position
from aiokvoffload.cache.slot_index import SlotIndex, make_slot_index
from aiokvoffload.config import GroupConfig

FULL = GroupConfig()


def make_chain(num_keys: int, group_idx: int = 0) -> list[OffloadKey]:
    return [make_offload_key(b"%03d" % number, group_idx) for number in range(num_keys)]


def index_of(keys: Iterable[OffloadKey]) -> SlotIndex:
    index = make_slot_index(1)
    present = list(keys)
    index.put(present, range(len(present)))
    return index


def test_nothing_present_reaches_position_0() -> None:
    assert longest_common_position([make_chain(3)], [FULL], [index_of([])]) == 0
    assert longest_common_position([[]], [FULL], [index_of([])]) == 0


def test_the_shortest_full_group_decides() -> None:
    """Fault 46."""
    chains = [make_chain(6, 0), make_chain(6, 1)]
    present = [index_of(chains[0]), index_of(chains[1][:4])]
    assert longest_common_position(chains, [FULL, FULL], present) == 4


def test_a_windowed_group_needs_only_its_last_chunks() -> None:
    """Fault 46."""
    chains = [make_chain(8, 0), make_chain(8, 1)]
    groups = [FULL, GroupConfig(window_chunks=2)]
    assert longest_common_position(chains, groups, [index_of(chains[0]), index_of(chains[1][4:6])]) == 6
    assert longest_common_position(chains, groups, [index_of(chains[0]), index_of([chains[1][5], chains[1][7]])]) == 0


def test_a_window_longer_than_the_position_is_the_whole_prefix() -> None:
    chain = make_chain(8)
    groups = [GroupConfig(window_chunks=4)]
    assert longest_common_position([chain], groups, [index_of(chain[:2])]) == 2


def test_groups_of_different_spans_meet_where_a_chunk_of_each_ends() -> None:
    chains = [make_chain(12, 0), make_chain(4, 1)]
    groups = [GroupConfig(span=2), GroupConfig(span=3)]
    assert longest_common_position(chains, groups, [index_of(chains[0][:8]), index_of(chains[1])]) == 12
    assert longest_common_position(chains, groups, [index_of(chains[0][:5]), index_of(chains[1])]) == 6


@st.composite
def layouts(
    draw: st.DrawFn,
) -> tuple[list[list[OffloadKey]], list[GroupConfig], list[SlotIndex]]:
    groups = draw(
        st.lists(
            st.builds(GroupConfig, span=st.integers(1, 3), window_chunks=st.none() | st.integers(1, 4)),
            min_size=1,
            max_size=3,
        )
    )
    chains = [make_chain(draw(st.integers(0, 14)), index) for index in range(len(groups))]
    present = [index_of([key for key in chain if draw(st.integers(0, 5))]) for chain in chains]
    return chains, groups, present


def fitting_positions(
    chains: list[list[OffloadKey]], groups: list[GroupConfig], present: list[SlotIndex]
) -> Iterator[int]:
    for position in range(min(len(c) * g.span for c, g in zip(chains, groups, strict=True)) + 1):
        if all(
            position % group.span == 0 and all(chain[i] in keys for i in group.chunks_at(position))
            for chain, group, keys in zip(chains, groups, present, strict=True)
        ):
            yield position


@settings(max_examples=300)
@given(layouts())
def test_it_finds_what_trying_every_position_finds(
    layout: tuple[list[list[OffloadKey]], list[GroupConfig], list[SlotIndex]],
) -> None:
    chains, groups, present = layout
    assert longest_common_position(chains, groups, present) == max(fitting_positions(*layout))

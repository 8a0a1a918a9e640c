from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from aiokvoffload.cli.belady import belady_hits


def best_hits(blocks: list[int], capacity: int) -> int:
    """By trying everything: after each use the cache keeps any of what it had and the block."""
    states = {frozenset[int](): 0}
    for block in blocks:
        after: dict[frozenset[int], int] = {}
        for kept, hits in states.items():
            after_use = hits + (block in kept)
            choices = kept | {block}
            for size in range(min(capacity, len(choices)) + 1):
                for chosen in map(frozenset, combinations(choices, size)):
                    after[chosen] = max(after.get(chosen, 0), after_use)
        states = after
    return max(states.values())


@settings(max_examples=60)
@given(st.lists(st.integers(0, 5), max_size=12), st.integers(1, 3))
def test_nothing_serves_more(blocks: list[int], capacity: int) -> None:
    assert belady_hits([blocks], capacity) == best_hits(blocks, capacity)

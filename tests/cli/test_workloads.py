import pytest

from aiokvoffload.cli.workloads import WORKLOADS, make_workload
from aiokvoffload.errors import ArgumentError


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_made_of_chains_and_is_the_same_for_the_same_seed(name: str) -> None:
    requests = make_workload(name, seed=3, blocks=5_000)
    assert requests == make_workload(name, seed=3, blocks=5_000)
    assert 5_000 <= sum(len(request.hash_ids) for request in requests) < 5_500
    parent: dict[int, int | None] = {}
    for request in requests:
        ids = request.hash_ids
        assert len(set(ids)) == len(ids) > 0
        for before, block in zip((None, *ids), ids, strict=False):
            assert parent.setdefault(block, before) == before, "an id stands for two prefixes"


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name != "loop"])
def test_another_seed_makes_another_workload(name: str) -> None:
    assert make_workload(name, seed=3, blocks=500) != make_workload(name, seed=4, blocks=500)


def test_an_unknown_name_and_an_impossible_length_are_named() -> None:
    with pytest.raises(ArgumentError, match="unknown workload 'nights'; known: uniform, "):
        make_workload("nights")
    with pytest.raises(ArgumentError, match="blocks must be at least 1, got 0"):
        make_workload("zipf", blocks=0)

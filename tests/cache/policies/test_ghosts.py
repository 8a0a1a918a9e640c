"""Fingerprints in arrays, against plain lists."""

from hypothesis import given
from hypothesis import strategies as st

from aiokvoffload.cache.policies.ghosts import CountTable, GhostList, fingerprints
from aiokvoffload.testing.policy import make_keys

tags = st.integers(0, 40)


@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "forget"]), st.lists(tags, max_size=6, unique=True))))
def test_ghosts_are_those_of_a_plain_list(steps: list[tuple[str, list[int]]]) -> None:
    """I11: never more than the limit."""
    ghosts, plain = GhostList(8), list[int]()
    for action, some in steps:
        if action == "add":
            new = [tag for tag in some if tag not in plain]
            ghosts.add(new)
            plain = [*plain, *new]
            plain = plain[max(0, len(plain) - 8) :]
        elif action == "remove":
            assert ghosts.remove(some) == [tag in plain for tag in some]
            plain = [tag for tag in plain if tag not in some]
        else:
            count = min(len(some), len(plain))
            ghosts.forget_oldest(count)
            plain = plain[count:]
        # Holes take room: where much was recalled, the oldest may be forgotten before the limit is reached.
        assert len(ghosts) <= len(plain) <= 8
        assert ghosts.count_present(plain) == len(ghosts)
        plain = plain[len(plain) - len(ghosts) :]


def test_many_at_once_are_found_and_put_as_one_by_one() -> None:
    at_once, one_by_one = CountTable(1000), CountTable(1000)
    some = fingerprints(make_keys(*range(2000)))
    counts = [1 + tag % 255 for tag in some]
    at_once.put(some, counts)
    for tag, count in zip(some, counts, strict=True):
        one_by_one.put([tag], [count])
    found = at_once.find(some)
    assert found == b"".join(one_by_one.find([tag]) for tag in some)
    assert 0 < found.count(0) < len(some)
    assert one_by_one.find(some) == found


def test_a_count_is_found_until_another_takes_its_place() -> None:
    table = CountTable(100)
    some = fingerprints(make_keys(*range(50)))
    table.put(some, [3] * 50)
    found = table.find(some)
    assert set(found) <= {0, 3}
    assert found.count(3) > 30
    assert table.find(fingerprints(make_keys(*range(100, 150)))) == bytes(50)
    table.clear()
    assert not any(table.find(some))


def test_a_fingerprint_is_the_same_in_every_process_and_differs_by_seed() -> None:
    """Fault 45: never Python's own hash."""
    assert fingerprints(make_keys(1)) == [3501703133]
    assert fingerprints(make_keys(1), 1) != fingerprints(make_keys(1))

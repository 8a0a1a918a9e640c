"""Keys of several groups in one call: who belongs to which group, and what an order over all of them is."""

from collections.abc import Iterable, Mapping, Sequence

from aiokvoffload.base import OffloadKey

SUFFIX_BYTES = 4
GROUP_SUFFIX = slice(-SUFFIX_BYTES, None)
"""Where a key says its group: faster to compare as bytes than to decode, key by key."""


def split_by_group(keys: Iterable[OffloadKey]) -> dict[bytes, list[OffloadKey]]:
    """The keys of each group, by suffix, in the order given; groups in the order in which they appear."""
    keys_by_group: dict[bytes, list[OffloadKey]] = {}
    for key in keys:
        keys_by_group.setdefault(key[GROUP_SUFFIX], []).append(key)
    return keys_by_group


def in_chain_order(keys: Sequence[OffloadKey], span_by_group: Mapping[bytes, int]) -> Sequence[OffloadKey]:
    """One order over the chains of several groups, head first, by the position that a key covers.

    A position is of use only with all its groups, so tails of all groups are to leave before the head of any. The
    chains of one call are taken to end at the same position, since that is where the computation stands; a windowed
    group may have been given from its window on only.

    Raises:
        KeyError: a key of an unknown group; its suffix.
    """
    keys_by_group = split_by_group(keys)
    if len(keys_by_group) < 2:
        return keys
    ranked = []
    for order, (suffix, chain) in enumerate(keys_by_group.items()):
        span = span_by_group[suffix]
        # Where chunks start together the longest goes first, so that a cut leaves no shorter ones beyond its end.
        ranked += [((index - len(chain)) * span, -span, order, key) for index, key in enumerate(chain)]
    return [key for *_, key in sorted(ranked)]


def all_end_in(suffix: bytes, joined: bytes, length: int) -> bool:
    """Whether keys of one length, laid end to end, so that they end at equal distances, are all of a suffix's group."""
    count = len(joined) // length
    one, two, three, four = suffix
    return (
        joined[length - 1 :: length].count(four) == count
        and joined[length - 2 :: length].count(three) == count
        and joined[length - 3 :: length].count(two) == count
        and joined[length - 4 :: length].count(one) == count
    )


def group_suffix(group_idx: int) -> bytes:
    """What keys of this group end with."""
    return group_idx.to_bytes(SUFFIX_BYTES, "big")

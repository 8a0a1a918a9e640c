"""What a slot is worth that holds a key of a certain age, given how likely such keys are used again, and when.

Knows numbers only. An age counts *epochs*, of which so many pass while the cache turns over once; ages that are far
from now are told apart less finely, in buckets, two for each doubling.

Sources: J. C. Gittins, "Bandit Processes and Dynamic Allocation Indices", 1979, for the index; E. L. Kaplan and
P. Meier, "Nonparametric Estimation from Incomplete Observations", 1958, for chances from keys that still wait.
"""

from collections.abc import Sequence

EPOCHS_PER_TURNOVER = 64
"""Of the clock, by which a cache that is asked for unknown keys mostly is turned over in a few epochs already."""
MOST_EPOCHS = 16 * EPOCHS_PER_TURNOVER
"""Ages from here on are one."""


def _bucket(age: int) -> int:
    return age if age < 2 else 2 * age.bit_length() + (age >> age.bit_length() - 2 & 1) - 2


BUCKET_OF = [_bucket(age) for age in range(MOST_EPOCHS)]
"""The bucket of each age."""
NUM_BUCKETS = BUCKET_OF[-1] + 1
BUCKET_STARTS = [BUCKET_OF.index(bucket) for bucket in range(NUM_BUCKETS)]
_WIDTHS = [BUCKET_OF.count(bucket) for bucket in range(NUM_BUCKETS)]

PRIOR = [
    0.01 * width / (EPOCHS_PER_TURNOVER + start + width) for start, width in zip(BUCKET_STARTS, _WIDTHS, strict=True)
]
"""Chances before anything was seen: small, and falling with age, so that the oldest keys leave first."""


def hazards(reused: Sequence[float], ended: Sequence[float], prior: Sequence[float], weight: float) -> list[float]:
    """The chance that a key which has come to an age bucket unused is used in it (Kaplan and Meier).

    Args:
        reused: for each bucket, keys that were used again at that age.
        ended: keys of which nothing is known beyond that age: those, those forgotten, and those that wait still.
        prior: chances to begin with.
        weight: how many observations they stand for.
    """
    waiting, chances = sum(ended), []
    for again, end, before in zip(reused, ended, prior, strict=True):
        # Those that end within a bucket have come through half of it.
        at_risk = max(0.0, waiting - end / 2)
        chances.append(min(1.0, (again + weight * before) / (at_risk + weight)))
        waiting -= end
    return chances


def gittins_index(chances: Sequence[float]) -> list[float]:
    """For a key in each age bucket: the best ratio of expected hits to time in its slot, over all ages to give up at.

    Args:
        chances: from `hazards`.
    """
    # From the oldest bucket to the youngest; on the stack are stretches of ages, (hits, time, chance to come through),
    # the next one on top. One whose ratio is better than that of the stretch before it is worth waiting for.
    stretches: list[tuple[float, float, float]] = []
    index = []
    for chance, width in zip(reversed(chances), reversed(_WIDTHS), strict=True):
        hits, time, through = chance, width * (1 - chance / 2), 1 - chance
        while stretches and stretches[-1][0] * time > hits * stretches[-1][1]:
            more_hits, more_time, more_through = stretches.pop()
            hits, time, through = hits + through * more_hits, time + through * more_time, through * more_through
        stretches.append((hits, time, through))
        index.append(hits / time)
    return index[::-1]

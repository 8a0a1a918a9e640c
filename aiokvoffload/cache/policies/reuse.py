"""After what age keys are used again, learned from a sample of all keys that are asked for, resident or not.

Knows fingerprints, levels of popularity and epochs; knows nothing of slots. A *probe* is a sampled key that waits to be
used again. Everything in here has its size from the beginning (I11).
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np

from aiokvoffload.cache.policies.ghosts import zeros
from aiokvoffload.cache.policies.gittins import (
    BUCKET_OF,
    BUCKET_STARTS,
    EPOCHS_PER_TURNOVER,
    MOST_EPOCHS,
    NUM_BUCKETS,
    PRIOR,
    gittins_index,
    hazards,
)

_MOST_SAMPLE_BITS = 4
_SLOTS_FOR_ONE_SAMPLE_BIT = 256
_PROBES_PER_SLOT = 2
COLD_EPOCHS = 8 * EPOCHS_PER_TURNOVER
"""How long there is too little to go by: while most keys are new, the clock is slow, and few probes wait."""
_MEASURES = 8
_FADING = 0.99
"""What is left of old evidence after half a turnover."""
_POPULARITY_GAIN = 2.0
"""A key used twice as often is taken to be twice as likely to be used again, until its level has evidence."""
_PRIOR_WEIGHT = 10.0

_COUNT_BYTES = array("I").itemsize

_Histogram = list[list[float]]
"""By level and age bucket."""


class ReuseModel:
    """Estimates, for each level of popularity, the chance of reuse at each age, and from it what a slot is worth.

    A probe lies in a table by its fingerprint and gives way to another that belongs there: it ends by chance, whatever
    would have become of it, so that the estimate stays right.

    Args:
        capacity: slots of the pool.
        num_levels: levels of popularity.

    Attributes:
        sample_mask: a key is sampled if these bits of its fingerprint are 0.
        values: by level and age bucket, expected hits per epoch in a slot.
        lru_epochs: how long a key stays in a pool of this size that evicts the one used longest ago, in epochs.
    """

    __slots__ = (
        "_ancient",
        "_lapsed",
        "_num_levels",
        "_probe_epochs",
        "_probe_levels",
        "_probe_tags",
        "_probed_slots",
        "_refreshed_epoch",
        "_refreshing",
        "_reused",
        "_size",
        "_waiting",
        "lru_epochs",
        "now",
        "sample_mask",
        "values",
    )  # fmt: skip

    def __init__(self, capacity: int, num_levels: int) -> None:
        self._size = _PROBES_PER_SLOT * capacity
        self._num_levels = num_levels
        self.sample_mask = sample_mask(capacity)
        self._probed_slots = capacity / (self.sample_mask + 1)
        self.clear()

    def clear(self) -> None:
        """Forget all that was learned."""
        levels = range(self._num_levels)
        self._probe_tags = zeros(self._size, np.uint32)
        self._probe_epochs = zeros(self._size, np.uint32)
        self._probe_levels = zeros(self._size, np.uint8)  # plus 1; 0 is no probe
        self._reused: _Histogram = [[0.0] * NUM_BUCKETS for _ in levels]
        self._lapsed: _Histogram = [[0.0] * NUM_BUCKETS for _ in levels]
        # Probes by level and the epoch of their last use, in a ring; those whose epoch was overwritten are ancient.
        self._waiting = [array("I", bytes(_COUNT_BYTES * MOST_EPOCHS)) for _ in levels]
        self._ancient = [0] * self._num_levels
        self.now = 0
        self.lru_epochs = 0.0
        self._refreshed_epoch = 0
        self._refreshing: Iterator[None] = iter(())
        self.values = [[0.0] * NUM_BUCKETS for _ in levels]
        for _ in self._refresh():
            pass

    def advance(self, epoch: int) -> None:
        """It is `epoch` now; do a part of what there is to learn."""
        if epoch > self.now:
            self._pass(max(self.now + 1, epoch - MOST_EPOCHS + 1), epoch)
            self.now = epoch
        if next(self._refreshing, self) is self and epoch - self._refreshed_epoch >= EPOCHS_PER_TURNOVER // 2:
            self._refreshed_epoch = epoch
            self._refreshing = self._refresh()

    def _pass(self, first: int, last: int) -> None:
        """The cells of these epochs are used anew; in slices, since in a small pool one call passes hundreds (I10)."""
        begin, end = first % MOST_EPOCHS, last % MOST_EPOCHS + 1
        stretches = [(begin, end)] if begin < end else [(begin, MOST_EPOCHS), (0, end)]
        for level, waiting in enumerate(self._waiting):
            for start, stop in stretches:
                self._ancient[level] += sum(waiting[start:stop])
                waiting[start:stop] = array("I", bytes(_COUNT_BYTES * (stop - start)))

    def observe(self, tag: int, level: int) -> int | None:
        """A sampled key is used, and of this level from now on.

        Returns:
            How many epochs ago it was used last, if that is known.
        """
        place = tag * self._size >> 32
        known, age = self._probe_levels[place], None
        if known:
            known -= 1
            epoch = self._probe_epochs[place]
            age = self.now - epoch
            is_reuse = self._probe_tags[place] == tag
            (self._reused if is_reuse else self._lapsed)[known][bucket_of(age)] += 1
            if age < MOST_EPOCHS:
                self._waiting[known][epoch % MOST_EPOCHS] -= 1
            else:
                self._ancient[known] -= 1
            age = age if is_reuse else None
        self._probe_tags[place] = tag
        self._probe_epochs[place] = self.now
        self._probe_levels[place] = level + 1
        self._waiting[level][self.now % MOST_EPOCHS] += 1
        return age

    def _refresh(self) -> Iterator[None]:
        """Estimate anew, level by level: a part for each call, so that none takes long (I10)."""
        ended = []
        for level in range(self._num_levels):
            ended.append(self._ended(level))
            yield
        self._update_lru_epochs(self._measure_lru_epochs())
        yield
        chances = hazards(_summed(self._reused), _summed(ended), PRIOR, 1.0)
        gain, all_values = 1.0, list[list[float]]()
        for level, ends in enumerate(ended):
            # What is known of less popular keys is the best guess for more popular ones.
            prior = [min(1.0, gain * chance) for chance in chances]
            chances = hazards(self._reused[level], ends, prior, _PRIOR_WEIGHT)
            values = gittins_index(chances)
            if level:
                values = list(map(max, values, all_values[-1]))
            all_values.append(values)
            gain = _POPULARITY_GAIN
            self._fade(level)
            yield
        self.values = all_values  # all at once: those of two times do not compare

    def _ended(self, level: int) -> list[float]:
        waiting = self._by_age(self._waiting[level])
        starts = [*BUCKET_STARTS, MOST_EPOCHS]
        ended = [float(sum(waiting[start:end])) for start, end in pairwise(starts)]
        ended[-1] += self._ancient[level]
        return [sum(each) for each in zip(ended, self._reused[level], self._lapsed[level], strict=True)]

    def _by_age(self, by_epoch: "array[int]") -> "array[int]":
        cell = self.now % MOST_EPOCHS
        return by_epoch[cell::-1] + by_epoch[:cell:-1]

    def _measure_lru_epochs(self) -> int:
        """The age at which so many keys have been used since that they fill the pool."""
        younger = accumulate(map(sum, zip(*map(self._by_age, self._waiting), strict=True)))
        return next((age for age, count in enumerate(younger) if count > self._probed_slots), MOST_EPOCHS)

    def _update_lru_epochs(self, measured: int) -> None:
        # In a small pool this is counted with a handful of probes, so it is the mean over some time; what was measured
        # before there were enough of them is far too high, and no part of it.
        if self.now < COLD_EPOCHS:
            self.lru_epochs = measured
        else:
            self.lru_epochs += (measured - self.lru_epochs) / _MEASURES

    def _fade(self, level: int) -> None:
        for histogram in (self._reused, self._lapsed):
            histogram[level] = [count * _FADING for count in histogram[level]]


def sample_mask(capacity: int) -> int:
    """Bits that are 0 in fingerprints of sampled keys: of every other key for a small pool, of one in 16 for a big one.

    A small one would have too few to learn from, and for a big one that many would cost too much.
    """
    bits = (capacity // _SLOTS_FOR_ONE_SAMPLE_BIT).bit_length()
    return (1 << min(max(1, bits), _MOST_SAMPLE_BITS)) - 1


def bucket_of(age: int) -> int:
    """The bucket of any age."""
    return BUCKET_OF[age] if age < MOST_EPOCHS else NUM_BUCKETS - 1


def _summed(histogram: Sequence[Sequence[float]]) -> list[float]:
    return [sum(each) for each in zip(*histogram, strict=True)]

"""GAP, held against LRU by what it sees, which takes over while it would have served more."""

from collections.abc import Sequence
from typing import Any

from aiokvoffload.base import OffloadKey, Residents
from aiokvoffload.cache.policies.gap import GAPPolicy
from aiokvoffload.cache.policies.gittins import EPOCHS_PER_TURNOVER
from aiokvoffload.cache.policies.reuse import COLD_EPOCHS

_SIGNIFICANT = 3.0
"""Standard deviations by which LRU must lead: less is chance, since it is looked at many times."""
_LEAD = 0.03
_MOST_EVIDENCE = 2000.0
"""Served keys in the sample after which all evidence is halved: it fades by what is seen, however small the pool."""
_FIRST_TURNOVERS = 64


class AdaptivePolicy(GAPPolicy):
    """GAP, until LRU would have served more for so long that chance does not explain it; then LRU for some turnovers.

    Whether LRU would have served a sampled key is known without a second cache: it would if the key's last use is
    younger than the age at which a key leaves an LRU cache of this size, which the sample tells. Each time that LRU has
    to take over again, it stays twice as long. Both rule over the same levels, so nothing leaves for the change itself.

    Attributes:
        is_lru: whether LRU rules.

    Args:
        residents: the pool whose keys it orders.
        seed: changes which keys are sampled.
    """

    __slots__ = (
        "_call_lead",
        "_judged_epoch",
        "_lead",
        "_served",
        "_term_epochs",
        "_until_epoch",
        "_variance",
        "is_lru",
    )

    def __init__(self, residents: Residents, *, seed: int = 0) -> None:
        super().__init__(residents, seed=seed)
        self._begin()

    def _begin(self) -> None:
        self.is_lru = False
        self._term_epochs = _FIRST_TURNOVERS * EPOCHS_PER_TURNOVER
        self._judged_epoch = self._until_epoch = 0
        self._call_lead = 0
        self._lead = self._variance = self._served = 0.0

    def access(
        self, resident: Sequence[OffloadKey], slots: Sequence[int], absent: Sequence[OffloadKey], chain: int
    ) -> None:
        """Count a use of all, learn from those that are sampled, and now and then judge who is to rule."""
        self._call_lead = 0
        super().access(resident, slots, absent, chain)
        if self._call_lead:
            self._lead += self._call_lead
            self._variance += self._call_lead**2  # keys of one call go together
        if self._epoch - self._judged_epoch >= EPOCHS_PER_TURNOVER // 2:
            self._judge()

    def observe(self, tag: int, level: int, *, is_resident: bool) -> int | None:
        """Compare what a sampled key met with what it would have met under LRU."""
        age = self._model.observe(tag, level)
        if age is not None:
            is_in_lru = age < self._model.lru_epochs
            self._call_lead += is_in_lru - is_resident
            self._served += (is_in_lru + is_resident) / 2
        return age

    def value(self, level: int, used_at: int) -> float:
        """What a slot is worth: the later used, the more, or by what was learned."""
        return used_at if self.is_lru else super().value(level, used_at)

    def _judge(self) -> None:
        self._judged_epoch = self._epoch
        if self._epoch < COLD_EPOCHS:
            self._lead = self._variance = self._served = 0.0
        leads = self._lead > max(_SIGNIFICANT * self._variance**0.5, _LEAD * self._served)
        if leads and not self.is_lru:
            self._until_epoch = self._epoch + self._term_epochs
            self._term_epochs *= 2
        begins, ends = leads and not self.is_lru, self.is_lru and self._epoch >= self._until_epoch
        if begins or ends:
            self.is_lru = begins
            self._value_anew()
            self._lead = self._variance = self._served = 0.0
        if self._served > _MOST_EVIDENCE:
            self._lead /= 2
            self._variance /= 2
            self._served /= 2

    def clear(self) -> Sequence[dict[Any, Any]]:
        """Forget every key and what was learned."""
        self._begin()
        return super().clear()

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {'LRU' if self.is_lru else 'GAP'} rules)"

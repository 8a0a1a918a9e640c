"""Which chunks go down to which tier, and when. Holds their slots until the tier has read them; moves nothing."""

from collections.abc import Collection, Sequence

from aiokvoffload.base import OffloadKey, get_offload_group_idx
from aiokvoffload.cache.chains import split_by_group
from aiokvoffload.cpu.manager import CPUOffloadingManager
from aiokvoffload.tiering.actions import Cascade, slots_of
from aiokvoffload.tiering.budget import SlotBudget
from aiokvoffload.tiering.config import CascadeMode
from aiokvoffload.tiering.rules import TierRules

_LEAVING_KEYS = 64
"""How far ahead of an eviction a chunk is written back: its tier needs time, and whatever is held cannot leave."""
_DECLINED_KEYS = 4096


class _TierCascades:
    """What is going down to one tier."""

    __slots__ = ("declined", "dropped", "rules", "serving", "token_by_key", "writes_back")

    def __init__(self, rules: TierRules) -> None:
        self.rules = rules
        self.writes_back = rules.cascade is CascadeMode.WRITE_BACK
        self.serving = True
        self.token_by_key: dict[OffloadKey, int] = {}
        self.declined: dict[OffloadKey, None] = {}
        self.dropped = 0

    def missing(self, keys: Sequence[OffloadKey]) -> list[OffloadKey]:
        """Those that the tier neither has nor is being given."""
        present = self.rules.facts.contains(keys)
        return [key for key, has in zip(keys, present, strict=True) if not has and key not in self.token_by_key]

    def decline(self, keys: Collection[OffloadKey]) -> None:
        self.declined.update(dict.fromkeys(keys))
        while len(self.declined) > _DECLINED_KEYS:
            del self.declined[next(iter(self.declined))]


class Cascades:
    """Decides on cascades, and pins for them.

    Args:
        primary: whose slots they read.
        rules: of each tier.
        budget: how many slots may be held.
    """

    def __init__(self, primary: CPUOffloadingManager, rules: Sequence[TierRules], budget: SlotBudget) -> None:
        self._primary = primary
        self._tiers = {each.name: _TierCascades(each) for each in rules}
        self._writes_back = any(tier.writes_back for tier in self._tiers.values())
        self._budget = budget
        self._pending: list[Cascade] = []

    @property
    def slots(self) -> int:
        """Slots held."""
        return self._budget.used

    def stored(self, keys: Sequence[OffloadKey]) -> None:
        """These keys of one call have become readable."""
        for tier in self._tiers.values():
            if tier.serving and not tier.writes_back:
                self._add(tier, tier.missing(keys))
        if self._writes_back:
            self._write_back()

    def _write_back(self) -> None:
        leaving = self._primary.first_to_leave(_LEAVING_KEYS)
        for tier in self._tiers.values():
            if tier.serving and tier.writes_back:
                # Tails leave first, but a tier is given chains head first.
                self._add(tier, [key for key in tier.missing(leaving)[::-1] if key not in tier.declined])

    def evicted(self, keys: Sequence[OffloadKey]) -> None:
        """These keys have left; what a tier in write-back mode was not given in time is lost to it."""
        if keys and self._writes_back:
            for tier in self._tiers.values():
                if tier.writes_back:
                    tier.dropped += len(tier.missing(keys))

    def take(self) -> list[Cascade]:
        """What was decided since the last call."""
        taken, self._pending = self._pending, []
        return taken

    def complete(self, cascade: Cascade) -> None:
        """The tier touches the slots no more."""
        self._primary.complete_load(cascade.token)
        self._budget.give(get_offload_group_idx(cascade.keys[0]), len(cascade.keys))
        tokens = self._tiers[cascade.tier].token_by_key
        for key in cascade.keys:
            if tokens.get(key) == cascade.token:
                del tokens[key]

    def decline(self, tier: str, keys: Collection[OffloadKey]) -> None:
        """The tier did not keep these."""
        self._tiers[tier].decline(keys)

    def count_dropped(self, tier: str) -> int:
        """Keys that the tier was not given, because it did not keep up."""
        return self._tiers[tier].dropped

    def set_serving(self, names: Collection[str]) -> None:
        """Nothing goes to other tiers than these."""
        for name, tier in self._tiers.items():
            tier.serving = name in names

    def forget(self) -> None:
        """The primary tier is reset: what has these keys from now on is something else."""
        for tier in self._tiers.values():
            tier.token_by_key.clear()
            tier.declined.clear()

    def __repr__(self) -> str:
        return f"Cascades({list(self._tiers)}, {self._budget!r}, {len(self._pending)} pending)"

    def _add(self, tier: _TierCascades, keys: Sequence[OffloadKey]) -> None:
        for group_keys in split_by_group(keys).values():
            group_idx = get_offload_group_idx(group_keys[0])
            fitting = group_keys[: max(0, self._budget.left(group_idx))]
            tier.dropped += len(group_keys) - len(fitting)
            max_keys = tier.rules.max_call_keys[group_idx]
            for start in range(0, len(fitting), max_keys):
                self._pin(tier, fitting[start : start + max_keys], group_idx)

    def _pin(self, tier: _TierCascades, keys: Sequence[OffloadKey], group_idx: int) -> None:
        token, pinned, spec = self._primary.pin(keys)
        if pinned:
            self._budget.take(group_idx, len(pinned))
            tier.token_by_key.update(dict.fromkeys(pinned, token))
            self._pending.append(Cascade(tier.rules.name, token, pinned, slots_of(spec)))

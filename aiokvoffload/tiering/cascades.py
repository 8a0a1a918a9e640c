"""Which chunks go down to which tier, and when. Holds their slots until the tier has read them; moves nothing."""

from collections.abc import Collection, Sequence
from itertools import islice, takewhile

from aiokvoffload.base import OffloadKey, get_offload_group_idx
from aiokvoffload.cache.chains import GROUP_SUFFIX
from aiokvoffload.cpu.manager import CPUOffloadingManager
from aiokvoffload.tiering.actions import Cascade, DroppedKeys, slots_of
from aiokvoffload.tiering.budget import SlotBudget
from aiokvoffload.tiering.config import CascadeMode
from aiokvoffload.tiering.rules import TierRules

_LEAVING_KEYS = 256
"""How far ahead of an eviction a chunk is written back: its tier needs time."""
_DECLINED_KEYS = 4096


class _TierCascades:
    """What is going down to one tier."""

    __slots__ = ("at_close", "closed", "declined", "held", "owed", "rules", "serving", "token_by_key", "withdrawn")

    def __init__(self, rules: TierRules) -> None:
        self.rules = rules
        self.serving, self.closed = True, False
        self.token_by_key: dict[OffloadKey, int] = {}
        self.declined: dict[OffloadKey, None] = {}
        self.owed: dict[OffloadKey, None] = {}
        self.held = self.withdrawn = self.at_close = 0

    @property
    def writes_back(self) -> bool:
        return self.rules.cascade is CascadeMode.WRITE_BACK

    def missing(self, keys: Sequence[OffloadKey]) -> list[OffloadKey]:
        """Those that the tier neither has nor is being given."""
        present = self.rules.facts.contains(keys)
        return [key for key, has in zip(keys, present, strict=True) if not has and key not in self.token_by_key]

    def evicted(self, keys: Sequence[OffloadKey]) -> None:
        """These will not be given to it any more."""
        if self.writes_back:
            self.held += len(self.missing(keys))
        if self.owed:
            before = len(self.owed)
            for key in keys:
                self.owed.pop(key, None)
            if not self.writes_back:  # those were counted by what the tier is missing
                self.held += before - len(self.owed)

    def withdraw(self) -> None:
        """It is owed nothing any more."""
        if not self.writes_back:  # those are offered again, or counted, when they are about to leave
            self.withdrawn += len(self.owed)
        self.owed.clear()

    def close(self) -> None:
        """It is given nothing more."""
        self.closed = True
        self.at_close += len(self.owed)
        self.owed.clear()

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
            if tier.closed and not tier.writes_back:
                tier.at_close += len(tier.missing(keys))
            elif tier.serving and not tier.writes_back:
                self._owe(tier, tier.missing(keys))
        if self._writes_back:
            self._write_back()

    def _write_back(self) -> None:
        waiting = [tier for tier in self._tiers.values() if tier.serving and tier.writes_back and not tier.closed]
        # Looked at again only when half of what was found has been taken care of.
        waiting = [tier for tier in waiting if len(tier.owed) < _LEAVING_KEYS // 2]
        if waiting:
            leaving = self._primary.first_to_leave(_LEAVING_KEYS)
            for tier in waiting:
                # Tails leave first, but a tier is given chains head first.
                self._owe(tier, [key for key in tier.missing(leaving)[::-1] if key not in tier.declined])

    def evicted(self, keys: Sequence[OffloadKey]) -> None:
        """These keys have left; what a tier was not given in time is lost to it (fault 26)."""
        if not keys:
            return
        for tier in self._tiers.values():
            tier.evicted(keys)

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
        for tier in self._tiers.values():
            self._pin_owed(tier)

    def decline(self, tier: str, keys: Collection[OffloadKey]) -> None:
        """The tier did not keep these."""
        self._tiers[tier].decline(keys)

    def count_dropped(self, tier: str) -> DroppedKeys:
        """Keys that the tier was not given."""
        cascades = self._tiers[tier]
        return DroppedKeys(cascades.held, cascades.withdrawn, cascades.at_close)

    def is_owed(self, tier: str, *, storing: bool) -> bool:
        """Whether keys are still to be given to the tier; while some are being stored here, maybe those."""
        cascades = self._tiers[tier]
        return bool(cascades.owed) or (storing and cascades.serving and not cascades.writes_back)

    def end(self, tier: str) -> None:
        """The tier is being closed: it is given nothing more."""
        self._tiers[tier].close()

    def set_serving(self, names: Collection[str]) -> None:
        """Nothing goes to other tiers than these."""
        for name, tier in self._tiers.items():
            tier.serving = name in names
            if not tier.serving:
                tier.withdraw()

    def forget(self) -> None:
        """The primary tier is reset: what has these keys from now on is something else."""
        for tier in self._tiers.values():
            tier.token_by_key.clear()
            tier.declined.clear()
            tier.withdraw()

    def __repr__(self) -> str:
        return f"Cascades({list(self._tiers)}, {self._budget!r}, {len(self._pending)} pending)"

    def _owe(self, tier: _TierCascades, keys: Sequence[OffloadKey]) -> None:
        tier.owed.update(dict.fromkeys(keys))
        self._pin_owed(tier)

    def _pin_owed(self, tier: _TierCascades) -> None:
        """As many of the keys that are to go down as slots may be held; the others wait unheld, and may be evicted."""
        while tier.owed:
            first = next(iter(tier.owed))
            group_idx = get_offload_group_idx(first)
            max_keys = tier.rules.max_call_keys[group_idx]
            room = min(self._budget.left(group_idx), max_keys)
            if room < 1:
                return
            suffix = first[GROUP_SUFFIX]
            keys = list(takewhile(lambda key: key[GROUP_SUFFIX] == suffix, islice(tier.owed, room)))  # noqa: B023
            token, pinned, spec = self._primary.pin(keys)
            # The first that could not be pinned is gone, for another reason than eviction.
            for key in keys[: len(pinned) + 1]:
                del tier.owed[key]
            if len(pinned) < len(keys):
                tier.withdrawn += 1
            if pinned:
                self._budget.take(group_idx, len(pinned))
                tier.token_by_key.update(dict.fromkeys(pinned, token))
                self._pending.append(Cascade(tier.rules.name, token, pinned, slots_of(spec), max_keys))

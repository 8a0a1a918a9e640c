"""What every cache policy must do, as a test class that authors of policies subclass."""

from collections.abc import Collection, Iterable, Sequence, Set
from itertools import count

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aiokvoffload.base import Admission, CachePolicy, OffloadKey, Residents, make_offload_key

CAPACITY = 8

ACTIONS = ("admit", "recover", "access", "remove", "pin", "unpin")
Step = tuple[str, list[int], set[int], int, int]
"""What is done, with which keys, while which are protected, how much room is lost, and for which chain."""

steps = st.lists(
    st.tuples(
        st.sampled_from(ACTIONS),
        st.lists(st.integers(0, 19), min_size=1, max_size=CAPACITY + 2, unique=True),
        st.sets(st.integers(0, 19), max_size=4),
        st.integers(0, 3),
        st.integers(0, 5),
    ),
    max_size=40,
)
# A test that several subclasses inherit runs with several executors; it keeps no state between them.
inherited = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.differing_executors])


def make_keys(*numbers: int) -> list[OffloadKey]:
    """Keys of group 0, one per number."""
    return [make_offload_key(b"%04d" % number, 0) for number in numbers]


class PlainResidents:
    """A pool in the plainest form: so many slots, some of which are held."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held: set[int] = set()

    def are_free(self, slots: Collection[int]) -> bool:
        """Whether no slot is held."""
        return self.held.isdisjoint(slots)


class PolicyModel:
    """Drives a policy as a tier does, by keys, and holds what it says against sets of keys.

    Args:
        policy: an empty policy for `residents`.
        residents: the pool that it orders.
    """

    def __init__(self, policy: CachePolicy, residents: PlainResidents) -> None:
        self.policy = policy
        self.residents = residents
        self.slots: dict[OffloadKey, int] = {}
        self.chains: dict[OffloadKey, int] = {}
        self._one_offs = count(1000)

    @property
    def pinned(self) -> set[OffloadKey]:
        """Resident keys that are held."""
        return {key for key, slot in self.slots.items() if slot in self.residents.held}

    def export(self) -> list[OffloadKey]:
        """The keys in the policy's order."""
        return list(self.policy.export().values())

    def admit(
        self,
        keys: Sequence[OffloadKey],
        protected: Set[OffloadKey] = frozenset(),
        lost_room: int = 0,
        chain: int | None = None,
        *,
        may_decline: bool = True,
    ) -> list[OffloadKey] | None:
        """Offer keys as the continuation of a chain, by default one of their own; its keys are protected as well.

        Returns:
            The keys that left; `None` if nothing was admitted.
        """
        chain = next(self._one_offs) if chain is None else chain
        protected = {*protected, *(key for key in self.slots if self.chains[key] == chain)}
        absent = [key for key in keys if key not in self.slots]
        if not absent:
            return None
        room = max(0, self.residents.capacity - len(self.slots) - lost_room)
        before = self.export()
        missing = max(0, len(absent) - room)
        assert [key for _, key in self.policy.first_to_leave(missing)] == before[:missing]
        victim_count = self.policy.count_victims(missing, protected, chain)
        assert self.export() == before, "counting victims changed something"
        admission = self.policy.admit(absent, room, protected, chain, may_decline=may_decline)
        if admission is None:
            assert self.export() == before, "a refused admission changed something (I6)"
            return None
        assert 1 <= admission.accepted <= len(absent)
        assert len(admission.victims) == max(0, admission.accepted - room)
        assert len(admission.victims) <= victim_count <= missing
        assert may_decline or admission.accepted == min(len(absent), room + victim_count)
        return self._apply(admission, absent, protected, chain)

    def recover(self, keys: Iterable[OffloadKey], chain: int) -> None:
        """Give absent keys, as many as there are slots for, as a tier does that finds them again after a restart."""
        free = self.residents.capacity - len(self.slots)
        found = [key for key in keys if key not in self.slots][:free]
        if found:
            admission = self.policy.admit(found, len(found), frozenset(), chain, may_decline=False)
            assert admission is not None, "what a restart has found was declined"
            assert (admission.accepted, len(admission.victims)) == (len(found), 0)
            self._apply(admission, found, frozenset(), chain)

    def _apply(
        self, admission: Admission, absent: Sequence[OffloadKey], protected: Set[OffloadKey], chain: int
    ) -> list[OffloadKey]:
        left = list(admission.victims)
        assert set(left) <= self.slots.keys() - self.pinned - protected
        assert [self.slots.pop(key) for key in left] == list(admission.slots)
        free = sorted(set(range(self.residents.capacity)).difference(self.slots.values()))
        accepted = absent[: admission.accepted]
        self.slots.update(zip(accepted, free, strict=False))
        self.chains.update(dict.fromkeys(accepted, chain))
        self.policy.place(accepted, [self.slots[key] for key in accepted], chain)
        return left

    def act(self, action: str, keys: Iterable[OffloadKey], chain: int | None = None) -> None:
        """Do anything else; an access is by default a use of its own."""
        resident = [key for key in keys if key in self.slots]
        slots = [self.slots[key] for key in resident]
        match action:
            case "recover":
                self.recover(keys, next(self._one_offs) if chain is None else chain)
            case "access":
                chain = next(self._one_offs) if chain is None else chain
                self.policy.access(resident, slots, [key for key in keys if key not in self.slots], chain)
                self.chains.update(dict.fromkeys(resident, chain))
            case "remove":
                self.policy.remove(slots)
                for key in resident:
                    self.residents.held.discard(self.slots.pop(key))
            case "pin":
                self.residents.held.update(slots)
            case "unpin":
                self.residents.held.difference_update(slots)
                self.policy.release(slots)

    def check(self) -> None:
        """The policy orders exactly the resident keys, and tells no others in their runs."""
        exported = self.policy.export()
        assert len(exported) == len(self.policy) <= self.residents.capacity
        assert {key: slot for slot, key in exported.items()} == self.slots
        for slot in exported:
            keys, slots = self.policy.rest_of_run(slot)
            assert [self.slots.get(key) for key in keys] == list(slots)
            assert slot not in slots


class CachePolicyContract:
    """Subclass it, define `make_policy`, and pytest holds the policy to its contract.

    Attributes:
        admits_selectively: set it if the policy may decline keys that would fit, where it is allowed to.
    """

    admits_selectively = False

    def make_policy(self, residents: Residents) -> CachePolicy:
        """An empty policy that orders the keys of `residents`."""
        raise NotImplementedError

    def make_model(self, capacity: int = CAPACITY) -> PolicyModel:
        """A driver of an empty policy."""
        residents = PlainResidents(capacity)
        return PolicyModel(self.make_policy(residents), residents)

    @inherited
    @given(steps=steps)
    def test_it_agrees_with_a_simple_model_whatever_is_done(self, steps: list[Step]) -> None:
        model = self.make_model()
        for action, numbers, protected, lost_room, chain in steps:
            if action == "admit":
                model.admit(make_keys(*numbers), set(make_keys(*protected)), lost_room, chain)
            else:
                model.act(action, make_keys(*numbers), chain)
            model.check()

    @inherited
    @given(steps=steps)
    def test_seeding_with_an_export_loses_nothing(self, steps: list[Step]) -> None:
        model = self.make_model()
        for action, numbers, protected, lost_room, chain in steps:
            if action == "admit":
                model.admit(make_keys(*numbers), set(make_keys(*protected)), lost_room, chain)
            else:
                model.act(action, make_keys(*numbers), chain)
        heir = self.make_policy(model.residents)
        heir.seed(model.policy.export())
        assert list(heir.export().items()) == list(model.policy.export().items())
        assert len(heir) == len(model.policy)

    @inherited
    @given(
        pinned=st.sets(st.integers(0, CAPACITY - 1)),
        frequent=st.sets(st.integers(0, CAPACITY - 1)),
        may_decline=st.booleans(),
    )
    def test_it_refuses_only_when_everything_is_pinned(
        self, pinned: set[int], frequent: set[int], may_decline: bool
    ) -> None:
        """Fault 20: where the list that should give a victim is all pinned, another one gives it."""
        model = self.make_model()
        model.admit(make_keys(*range(CAPACITY)))
        model.act("access", make_keys(*sorted(frequent)))
        model.act("pin", make_keys(*sorted(pinned)))
        free_to_go = CAPACITY - len(pinned)
        left = model.admit(make_keys(*range(100, 100 + CAPACITY)), may_decline=may_decline)
        if not (may_decline and self.admits_selectively):
            assert len(left or ()) == free_to_go
        model.check()

    def test_a_chain_leaves_tail_first(self) -> None:
        model = self.make_model()
        chain = make_keys(*range(CAPACITY))
        model.admit(chain)
        left = model.admit(make_keys(101, 102, 103)) or []
        assert left == chain[::-1][: len(left)]

    def test_a_chain_that_comes_in_runs_leaves_tail_first(self) -> None:
        model = self.make_model()
        chain = make_keys(*range(CAPACITY))
        for run in (chain[:3], chain[3:6], chain[6:]):
            model.admit(run, chain=1)
        assert model.export() == chain[::-1]

    def test_chains_whose_runs_are_interleaved_leave_one_after_the_other_each_tail_first(self) -> None:
        """The head of neither is lost to the other's tail; the one that grew last is the more recent as a whole."""
        model = self.make_model()
        one, other = make_keys(*range(4)), make_keys(*range(10, 14))
        for start in (0, 2):
            model.admit(other[start : start + 2], chain=2)
            model.admit(one[start : start + 2], chain=1)
        assert model.export() == other[::-1] + one[::-1]

    def test_a_chain_that_grows_is_the_most_recent_one_with_its_head(self) -> None:
        model = self.make_model()
        grown, other = make_keys(*range(4)), make_keys(*range(10, 14))
        model.admit(grown[:3], chain=1)
        model.admit(other, chain=2)
        model.admit(grown[3:], chain=1)
        for number in range(100, 104):
            assert not set(model.admit(make_keys(number)) or ()) & set(grown)
        model.check()

    def test_what_a_restart_finds_leaves_in_the_order_in_which_it_was_stored(self) -> None:
        """Chain by chain, each in runs, and others store meanwhile; nothing of it was used before."""
        model = self.make_model()
        one, other = make_keys(0, 1, 2), make_keys(10, 11, 12)
        model.recover(one[:2], chain=1)
        model.admit(make_keys(20), chain=2)
        model.recover(one[2:], chain=1)
        model.recover(other, chain=3)
        assert model.export() == make_keys(20) + one[::-1] + other[::-1]
        model.check()

    def test_a_chain_used_in_runs_leaves_tail_first_whoever_stored_it(self) -> None:
        model = self.make_model()
        chain = make_keys(*range(CAPACITY))
        model.admit(chain[4:])
        model.admit(chain[:4])
        for run in (chain[:2], chain[2:7], chain[7:]):
            model.act("access", run, 1)
        assert model.export() == chain[::-1]

    def test_a_chain_keeps_its_order_around_what_was_pinned_in_it(self) -> None:
        model = self.make_model()
        chain = make_keys(*range(6))
        model.admit(chain[:4], chain=1)
        model.admit(make_keys(10, 11, 12, 13), chain=2)
        model.act("pin", chain[2:4])
        model.admit(make_keys(100))
        model.act("unpin", chain[2:4])
        model.admit(chain[4:], chain=1)
        left = [key for key in model.export() if key in chain]
        assert left == [key for key in chain[::-1] if key in left]

    def test_pinned_and_protected_keys_stay(self) -> None:
        model = self.make_model()
        keys = make_keys(*range(CAPACITY))
        model.admit(keys)
        model.act("pin", keys[4:])
        assert model.admit(make_keys(101), set(keys[:4])) is None
        model.act("unpin", keys[7:])
        left = model.admit(make_keys(101), set(keys[:4]))
        assert left in (None, keys[7:])

    def test_what_was_removed_while_pinned_is_forgotten(self) -> None:
        model = self.make_model()
        keys = make_keys(*range(CAPACITY))
        model.admit(keys)
        model.act("pin", keys)
        slots = [model.slots[key] for key in keys]
        model.act("remove", keys[:2])
        model.residents.held.clear()
        model.policy.release(slots)
        assert set(model.export()) == set(keys[2:])
        model.check()

    def test_clear_forgets_everything(self) -> None:
        model = self.make_model()
        model.admit(make_keys(*range(CAPACITY)))
        model.act("pin", make_keys(0, 1))
        model.admit(make_keys(20))
        containers = model.policy.clear()
        assert all(isinstance(container, dict) for container in containers)
        assert len(model.policy) == 0
        assert not model.policy.export()
        again = PolicyModel(model.policy, model.residents)
        model.residents.held.clear()
        again.admit(make_keys(*range(CAPACITY)))
        again.admit(make_keys(*range(20, 20 + CAPACITY)))
        again.check()

"""What every cache policy must do, as a test class that authors of policies subclass."""

from collections.abc import Sequence, Set
from itertools import count

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aiokvoffload.base import Admission, CachePolicy, OffloadKey, make_offload_key

CAPACITY = 8

ACTIONS = ("admit", "access", "remove", "pin", "unpin")
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


class PolicyModel:
    """Drives a policy as a tier does, and holds what it says against sets of keys."""

    def __init__(self, policy: CachePolicy, capacity: int) -> None:
        self.policy = policy
        self.capacity = capacity
        self.resident: set[OffloadKey] = set()
        self.chains: dict[OffloadKey, int] = {}
        self._one_offs = count(1000)
        self.pinned: set[OffloadKey] = set()

    def admit(
        self,
        keys: Sequence[OffloadKey],
        protected: Set[OffloadKey] = frozenset(),
        lost_room: int = 0,
        chain: int | None = None,
    ) -> Admission | None:
        """Offer keys as the continuation of a chain, by default one of their own; its keys are protected as well."""
        chain = next(self._one_offs) if chain is None else chain
        protected = {*protected, *(key for key in self.resident if self.chains[key] == chain)}
        absent = [key for key in keys if key not in self.resident]
        if not absent:
            return None
        room = max(0, self.capacity - len(self.resident) - lost_room)
        before = list(self.policy.export())
        missing = max(0, len(absent) - room)
        victim_count = self.policy.count_victims(missing, protected, chain)
        assert self.policy.export() == before, "counting victims changed something"
        admission = self.policy.admit(absent, room, protected, chain)
        if admission is None:
            assert self.policy.export() == before, "a refused admission changed something (I6)"
            return None
        accepted, victims = admission
        assert 1 <= accepted <= len(absent)
        assert len(set(victims)) == len(victims) == max(0, accepted - room)
        assert len(victims) <= victim_count <= missing
        assert set(victims) <= self.resident - self.pinned - protected
        self.resident.difference_update(victims)
        self.resident.update(absent[:accepted])
        self.chains.update(dict.fromkeys(absent[:accepted], chain))
        return admission

    def act(self, action: str, keys: Sequence[OffloadKey], chain: int | None = None) -> None:
        """Do anything else; an access is by default a use of its own."""
        resident = [key for key in keys if key in self.resident]
        match action:
            case "access":
                chain = next(self._one_offs) if chain is None else chain
                self.policy.access(keys, chain)
                self.chains.update(dict.fromkeys(resident, chain))
            case "remove":
                self.policy.remove(keys)
                self.resident.difference_update(keys)
                self.pinned.difference_update(keys)
            case "pin":
                self.policy.pin([key for key in resident if key not in self.pinned])
                self.pinned.update(resident)
            case "unpin":
                self.policy.unpin([key for key in resident if key in self.pinned])
                self.pinned.difference_update(resident)

    def check(self) -> None:
        exported = self.policy.export()
        assert len(exported) == len(set(exported)) == len(self.policy) <= self.capacity
        assert set(exported) == self.resident


class CachePolicyContract:
    """Subclass it, define `make_policy`, and pytest holds the policy to its contract.

    Attributes:
        admits_selectively: set it if the policy may decline keys that would fit.
    """

    admits_selectively = False

    def make_policy(self, capacity: int) -> CachePolicy:
        """An empty policy."""
        raise NotImplementedError

    def make_model(self, capacity: int = CAPACITY) -> PolicyModel:
        return PolicyModel(self.make_policy(capacity), capacity)

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
        heir = self.make_policy(CAPACITY)
        heir.seed(model.policy.export())
        assert list(heir.export()) == list(model.policy.export())
        assert len(heir) == len(model.policy)

    @inherited
    @given(pinned=st.sets(st.integers(0, CAPACITY - 1)), frequent=st.sets(st.integers(0, CAPACITY - 1)))
    def test_it_refuses_only_when_everything_is_pinned(self, pinned: set[int], frequent: set[int]) -> None:
        """Fault 20: where the list that should give a victim is all pinned, another one gives it."""
        model = self.make_model()
        model.admit(make_keys(*range(CAPACITY)))
        model.act("access", make_keys(*sorted(frequent)))
        model.act("pin", make_keys(*sorted(pinned)))
        free_to_go = CAPACITY - len(pinned)
        admission = model.admit(make_keys(*range(100, 100 + CAPACITY)))
        if not self.admits_selectively:
            assert (admission.accepted if admission else 0) == free_to_go
        model.check()

    def test_a_chain_leaves_tail_first(self) -> None:
        model = self.make_model()
        chain = make_keys(*range(CAPACITY))
        model.admit(chain)
        admission = model.admit(make_keys(101, 102, 103))
        if admission is not None:
            assert list(admission.victims) == chain[::-1][: len(admission.victims)]

    def test_a_chain_that_comes_in_runs_leaves_tail_first(self) -> None:
        model = self.make_model()
        chain = make_keys(*range(CAPACITY))
        for run in (chain[:3], chain[3:6], chain[6:]):
            model.admit(run, chain=1)
        assert list(model.policy.export()) == chain[::-1]

    def test_chains_whose_runs_are_interleaved_leave_one_after_the_other_each_tail_first(self) -> None:
        """The head of neither is lost to the other's tail; the one that grew last is the more recent as a whole."""
        model = self.make_model()
        one, other = make_keys(*range(4)), make_keys(*range(10, 14))
        for start in (0, 2):
            model.admit(other[start : start + 2], chain=2)
            model.admit(one[start : start + 2], chain=1)
        assert list(model.policy.export()) == other[::-1] + one[::-1]

    def test_a_chain_that_grows_is_the_most_recent_one_with_its_head(self) -> None:
        model = self.make_model()
        grown, other = make_keys(*range(4)), make_keys(*range(10, 14))
        model.admit(grown[:3], chain=1)
        model.admit(other, chain=2)
        model.admit(grown[3:], chain=1)
        for number in range(100, 104):
            admission = model.admit(make_keys(number))
            if admission is not None:
                assert not set(admission.victims) & set(grown)
        model.check()

    def test_a_chain_used_in_runs_leaves_tail_first_whoever_stored_it(self) -> None:
        model = self.make_model()
        chain = make_keys(*range(CAPACITY))
        model.admit(chain[4:])
        model.admit(chain[:4])
        for run in (chain[:2], chain[2:7], chain[7:]):
            model.act("access", run, 1)
        assert list(model.policy.export()) == chain[::-1]

    def test_a_chain_keeps_its_order_around_what_was_pinned_in_it(self) -> None:
        model = self.make_model()
        chain = make_keys(*range(6))
        model.admit(chain[:4], chain=1)
        model.admit(make_keys(10, 11, 12, 13), chain=2)
        model.act("pin", chain[2:4])
        model.admit(make_keys(100))
        model.act("unpin", chain[2:4])
        model.admit(chain[4:], chain=1)
        left = [key for key in model.policy.export() if key in chain]
        assert left == [key for key in chain[::-1] if key in left]

    def test_pinned_and_protected_keys_stay(self) -> None:
        model = self.make_model()
        keys = make_keys(*range(CAPACITY))
        model.admit(keys)
        model.act("pin", keys[4:])
        assert model.admit(make_keys(101), set(keys[:4])) is None
        model.act("unpin", keys[7:])
        admission = model.admit(make_keys(101), set(keys[:4]))
        if admission is not None:
            assert list(admission.victims) == keys[7:]

    def test_what_was_removed_while_pinned_is_forgotten(self) -> None:
        model = self.make_model()
        keys = make_keys(*range(CAPACITY))
        model.admit(keys)
        model.act("pin", keys)
        model.policy.remove(keys[:2])
        model.policy.unpin(keys)
        assert set(model.policy.export()) == set(keys[2:])

    def test_clear_forgets_keys_and_pins(self) -> None:
        model = self.make_model()
        model.admit(make_keys(*range(CAPACITY)))
        model.act("pin", make_keys(0, 1))
        containers = model.policy.clear()
        assert all(isinstance(container, dict) for container in containers)
        assert len(model.policy) == 0
        again = self.make_model()
        again.policy = model.policy
        again.admit(make_keys(*range(CAPACITY)))
        again.admit(make_keys(*range(20, 20 + CAPACITY)))
        again.check()

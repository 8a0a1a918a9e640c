"""What every cache policy must do, as a test class that authors of policies subclass."""

from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aiokvoffload.base import Admission, CachePolicy, OffloadKey, make_offload_key

CAPACITY = 8

ACTIONS = ("admit", "access", "refresh", "remove", "pin", "unpin")
steps = st.lists(
    st.tuples(
        st.sampled_from(ACTIONS),
        st.lists(st.integers(0, 19), min_size=1, max_size=CAPACITY + 2, unique=True),
        st.sets(st.integers(0, 19), max_size=4),
        st.integers(0, 3),
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
        self.pinned: set[OffloadKey] = set()

    def admit(self, keys: Sequence[OffloadKey], protected: set[OffloadKey], lost_room: int = 0) -> Admission | None:
        absent = [key for key in keys if key not in self.resident]
        if not absent:
            return None
        room = max(0, self.capacity - len(self.resident) - lost_room)
        before = list(self.policy.export())
        admission = self.policy.admit(absent, room, protected)
        if admission is None:
            assert self.policy.export() == before, "a refused admission changed something (I6)"
            return None
        accepted, victims = admission
        assert 1 <= accepted <= len(absent)
        assert len(set(victims)) == len(victims) == max(0, accepted - room)
        assert set(victims) <= self.resident - self.pinned - protected
        self.resident.difference_update(victims)
        self.resident.update(absent[:accepted])
        return admission

    def act(self, action: str, keys: Sequence[OffloadKey]) -> None:
        resident = [key for key in keys if key in self.resident]
        match action:
            case "access":
                self.policy.access(keys)
            case "refresh":
                self.policy.refresh(keys)
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
    def test_it_agrees_with_a_simple_model_whatever_is_done(
        self, steps: list[tuple[str, list[int], set[int], int]]
    ) -> None:
        model = self.make_model()
        for action, numbers, protected, lost_room in steps:
            if action == "admit":
                model.admit(make_keys(*numbers), set(make_keys(*protected)), lost_room)
            else:
                model.act(action, make_keys(*numbers))
            model.check()

    @inherited
    @given(steps=steps)
    def test_seeding_with_an_export_loses_nothing(self, steps: list[tuple[str, list[int], set[int], int]]) -> None:
        model = self.make_model()
        for action, numbers, protected, lost_room in steps:
            if action == "admit":
                model.admit(make_keys(*numbers), set(make_keys(*protected)), lost_room)
            else:
                model.act(action, make_keys(*numbers))
        heir = self.make_policy(CAPACITY)
        heir.seed(model.policy.export())
        assert list(heir.export()) == list(model.policy.export())
        assert len(heir) == len(model.policy)

    @inherited
    @given(pinned=st.sets(st.integers(0, CAPACITY - 1)), frequent=st.sets(st.integers(0, CAPACITY - 1)))
    def test_it_refuses_only_when_everything_is_pinned(self, pinned: set[int], frequent: set[int]) -> None:
        """Fault 20: where the list that should give a victim is all pinned, another one gives it."""
        model = self.make_model()
        model.admit(make_keys(*range(CAPACITY)), set())
        model.act("access", make_keys(*sorted(frequent)))
        model.act("pin", make_keys(*sorted(pinned)))
        free_to_go = CAPACITY - len(pinned)
        admission = model.admit(make_keys(*range(100, 100 + CAPACITY)), set())
        if not self.admits_selectively:
            assert (admission.accepted if admission else 0) == free_to_go
        model.check()

    def test_a_chain_leaves_tail_first(self) -> None:
        model = self.make_model()
        chain = make_keys(*range(CAPACITY))
        model.admit(chain, set())
        admission = model.admit(make_keys(101, 102, 103), set())
        if admission is not None:
            assert list(admission.victims) == chain[::-1][: len(admission.victims)]

    def test_a_chain_used_piece_by_piece_leaves_tail_first_once_refreshed(self) -> None:
        model = self.make_model()
        chain = make_keys(*range(CAPACITY))
        model.admit(chain[:3], set())
        model.admit(chain[3:6], set())
        model.admit(chain[6:], set())
        model.policy.refresh(chain)
        assert list(model.policy.export()) == chain[::-1]

    def test_pinned_and_protected_keys_stay(self) -> None:
        model = self.make_model()
        keys = make_keys(*range(CAPACITY))
        model.admit(keys, set())
        model.act("pin", keys[4:])
        assert model.admit(make_keys(101), set(keys[:4])) is None
        model.act("unpin", keys[7:])
        admission = model.admit(make_keys(101), set(keys[:4]))
        if admission is not None:
            assert list(admission.victims) == keys[7:]

    def test_what_was_removed_while_pinned_is_forgotten(self) -> None:
        model = self.make_model()
        keys = make_keys(*range(CAPACITY))
        model.admit(keys, set())
        model.act("pin", keys)
        model.policy.remove(keys[:2])
        model.policy.unpin(keys)
        assert set(model.policy.export()) == set(keys[2:])

    def test_clear_forgets_keys_and_pins(self) -> None:
        model = self.make_model()
        model.admit(make_keys(*range(CAPACITY)), set())
        model.act("pin", make_keys(0, 1))
        containers = model.policy.clear()
        assert all(isinstance(container, dict) for container in containers)
        assert len(model.policy) == 0
        again = self.make_model()
        again.policy = model.policy
        again.admit(make_keys(*range(CAPACITY)), set())
        again.admit(make_keys(*range(20, 20 + CAPACITY)), set())
        again.check()

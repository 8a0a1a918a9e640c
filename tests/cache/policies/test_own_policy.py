"""The policy that docs/policies.md shows keeps the promises of every policy."""

import re
from pathlib import Path
from typing import Any

from aiokvoffload.base import CachePolicy, Residents
from aiokvoffload.testing.policy import CachePolicyContract, make_keys

PAGE = Path(__file__).parents[3] / "docs" / "policies.md"


def shown() -> Any:
    """The class on the page."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - the documentation's own code
    return names["OnceOrMore"]


class TestTheDocumentedPolicy(CachePolicyContract):
    def make_policy(self, residents: Residents) -> CachePolicy:
        policy: CachePolicy = shown()(residents)
        return policy

    def test_what_was_used_again_leaves_last(self) -> None:
        model = self.make_model(3)
        for number in (1, 2, 3):
            model.admit(make_keys(number))
        model.act("access", make_keys(1))
        assert model.admit(make_keys(4, 5)) == make_keys(2, 3)
        assert model.admit(make_keys(6, 7)) == make_keys(5, 4)

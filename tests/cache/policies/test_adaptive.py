from aiokvoffload.base import CachePolicy, Residents
from aiokvoffload.cache.policies.adaptive import AdaptivePolicy
from aiokvoffload.testing.policy import CachePolicyContract


class TestAdaptivePolicy(CachePolicyContract):
    admits_selectively = True

    def make_policy(self, residents: Residents) -> CachePolicy:
        return AdaptivePolicy(residents)

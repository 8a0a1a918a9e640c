from aiokvoffload.base import CachePolicy, Residents
from aiokvoffload.cache.policies.s3fifo import S3FIFOPolicy
from aiokvoffload.testing.policy import CachePolicyContract


class TestS3FIFOPolicy(CachePolicyContract):
    admits_selectively = False

    def make_policy(self, residents: Residents) -> CachePolicy:
        return S3FIFOPolicy(residents)

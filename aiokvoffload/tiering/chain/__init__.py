"""The chain: performs what the manager of several tiers decides."""

from aiokvoffload.tiering.chain.chain import Chain
from aiokvoffload.tiering.chain.listener import ChainListener
from aiokvoffload.tiering.chain.statistics import TierStatistics
from aiokvoffload.tiering.chain.walk import PromotionWalk

__all__ = ["Chain", "ChainListener", "PromotionWalk", "TierStatistics"]

"""Names for parts that can be swapped: cache policies, secondary tiers and specs.

A name stands for `"module:attribute"`. Built-in names are listed here; an installed package adds its own through the
entry-point groups `aiokvoffload.policies`, `aiokvoffload.tiers` and `aiokvoffload.specs`. Nothing is imported before it
is asked for.
"""

import importlib
from importlib.metadata import entry_points
from typing import Any

from aiokvoffload.errors import ConfigError

BUILTIN: dict[str, dict[str, str]] = {
    "policies": {
        "adaptive": "aiokvoffload.cache.policies.adaptive:AdaptivePolicy",
        "gap": "aiokvoffload.cache.policies.gap:GAPPolicy",
        "lru": "aiokvoffload.cache.policies.lru:LRUPolicy",
        "arc": "aiokvoffload.cache.policies.arc:ARCPolicy",
        "s3fifo": "aiokvoffload.cache.policies.s3fifo:S3FIFOPolicy",
        "sieve": "aiokvoffload.cache.policies.sieve:SIEVEPolicy",
        "lfu": "aiokvoffload.cache.policies.lfu:LFUPolicy",
    },
    "tiers": {
        "disk": "aiokvoffload.tiering.disk.tier:DiskTier",
        "memory": "aiokvoffload.tiering.memory:MemoryTier",
    },
    "specs": {
        "cpu": "aiokvoffload.cpu.spec:CPUOffloadingSpec",
        "tiering": "aiokvoffload.tiering.spec:TieringOffloadingSpec",
    },
}


def names(kind: str) -> list[str]:
    """All names known for `kind` (`"policies"`, `"tiers"` or `"specs"`), built-in ones first."""
    plugins = (entry.name for entry in entry_points(group=f"aiokvoffload.{kind}"))
    return list(dict.fromkeys([*BUILTIN[kind], *plugins]))


def resolve(kind: str, name: str) -> Any:
    """The object that `name` stands for.

    Raises:
        ConfigError: the name is unknown, or what it stands for cannot be imported, or is a class with methods missing.
    """
    target = BUILTIN[kind].get(name) or _plugin_target(kind, name)
    module_name, _, attribute = target.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # a module may raise anything while it is imported
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{kind}: {name!r} stands for {target!r}, which cannot be loaded: {reason}") from error
    if not callable(found):
        raise ConfigError(f"{kind}: {name!r} stands for {target!r}, which is a {type(found).__name__}, not a class")
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise ConfigError(f"{kind}: {name!r} stands for {target!r}, which lacks {', '.join(missing)}")
    return found


def _plugin_target(kind: str, name: str) -> str:
    for entry in entry_points(group=f"aiokvoffload.{kind}", name=name):
        return entry.value
    raise ConfigError(f"{kind}: unknown name {name!r}; known: {', '.join(names(kind))}")

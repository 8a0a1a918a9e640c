"""Names for what can be swapped."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from aiokvoffload import registry
from aiokvoffload.cache.policies.lru import LRUPolicy
from aiokvoffload.errors import ConfigError


def test_every_builtin_name_stands_for_something() -> None:
    for kind in registry.BUILTIN:
        for name in registry.names(kind):
            assert callable(registry.resolve(kind, name))


def test_an_unknown_name_is_told_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match="unknown name 'belady'; known: adaptive, gap, lru, arc, s3fifo, sieve, lfu"):
        registry.resolve("policies", "belady")


def test_an_installed_package_adds_names_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    group = "aiokvoffload.policies"
    plugin = EntryPoint("mine", "aiokvoffload.cache.policies.lru:LRUPolicy", group)
    broken = EntryPoint("broken", "no_such_module:Policy", group)
    number = EntryPoint("number", "aiokvoffload.cli.shell:MAX_COUNT", group)
    unfinished = EntryPoint("unfinished", "aiokvoffload.cache.policies.layers:LayeredPolicy", group)

    def entry_points(*, group: str, name: str | None = None) -> list[EntryPoint]:
        assert group == plugin.group
        return [entry for entry in (plugin, broken, number, unfinished) if name in (None, entry.name)]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    assert registry.resolve("policies", "mine") is LRUPolicy
    assert registry.names("policies") == [*registry.BUILTIN["policies"], "mine", "broken", "number", "unfinished"]
    with pytest.raises(ConfigError, match="'no_such_module:Policy', which cannot be loaded"):
        registry.resolve("policies", "broken")
    with pytest.raises(ConfigError, match="MAX_COUNT', which is a int, not a class"):
        registry.resolve("policies", "number")
    with pytest.raises(ConfigError, match=r"layers:LayeredPolicy', which lacks access, evict, place"):
        registry.resolve("policies", "unfinished")


def test_a_module_that_fails_while_it_is_imported_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "blows_up.py").write_text("raise RuntimeError('boom')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(registry.BUILTIN["policies"], "mine", "blows_up:Policy")
    with pytest.raises(ConfigError, match="'blows_up:Policy', which cannot be loaded: RuntimeError: boom"):
        registry.resolve("policies", "mine")

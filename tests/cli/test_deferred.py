"""Modules that a command imports when it has something to do."""

import importlib
import sys
from pathlib import Path

import pytest

from aiokvoffload.cli.deferred import Deferred
from aiokvoffload.errors import ConfigError


@pytest.fixture
def lazy_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a module that can be imported as `lazy_module`, and is not yet."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "lazy_module", raising=False)
    importlib.invalidate_caches()
    return tmp_path / "lazy_module.py"


def test_a_module_is_imported_when_something_of_it_is_asked_for(lazy_module: Path) -> None:
    lazy_module.write_text("ANSWER = 42\n")
    deferred = Deferred("lazy_module")
    assert "lazy_module" not in sys.modules
    assert deferred.ANSWER == 42
    with pytest.raises(AttributeError, match="lazy_module"):
        deferred.QUESTION  # noqa: B018
    assert repr(deferred) == "<Deferred lazy_module>"


def test_a_package_that_an_extra_brings_is_asked_for_by_that_extra(
    lazy_module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lazy_module.write_text("import zmq.asyncio\n")
    monkeypatch.setitem(sys.modules, "zmq", None)
    monkeypatch.delitem(sys.modules, "zmq.asyncio", raising=False)
    with pytest.raises(ConfigError, match=r"^zmq is missing: pip install 'aiokvoffload\[cli\]'$"):
        Deferred("lazy_module").tail  # noqa: B018


def test_any_other_missing_module_is_a_mistake_of_ours(lazy_module: Path) -> None:
    lazy_module.write_text("import aiokvoffload.nowhere\n")
    with pytest.raises(ModuleNotFoundError, match=r"aiokvoffload\.nowhere"):
        Deferred("lazy_module").tail  # noqa: B018

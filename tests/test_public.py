"""The front page of the package: what it names is what it names, and costs nothing until it is used."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import aiokvoffload


def declared() -> dict[str, str]:
    """For each name that type checkers see, the module that it comes from."""
    tree = ast.parse(Path(aiokvoffload.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: str(node.module) for node in imports for alias in node.names}
    homes.pop("TYPE_CHECKING")
    return homes


def test_every_public_name_is_what_type_checkers_take_it_for() -> None:
    homes = declared()
    assert sorted(homes) == sorted(aiokvoffload.__all__)
    for name, home in homes.items():
        assert getattr(aiokvoffload, name) is getattr(importlib.import_module(home), name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'aiokvoffload' has no attribute 'Offloader'"):
        aiokvoffload.Offloader  # type: ignore[attr-defined] # noqa: B018
    assert set(aiokvoffload.__all__) <= set(dir(aiokvoffload))


def test_keys_configurations_and_errors_do_without_torch() -> None:
    uses = "kv.make_offload_key, kv.CPUOffloadingConfig, kv.OffloadError, kv.CPUOffloadingManager, kv.EventBus"
    code = f"import sys, aiokvoffload as kv; {uses}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603

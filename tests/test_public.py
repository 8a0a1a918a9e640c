"""The front page of the package: what it names is what it names, and costs nothing until it is used."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import aiokvoffload
from tests.forked import Forks, without


def declared() -> dict[str, str]:
    """For each name that type checkers see, the module that it comes from."""
    tree = ast.parse(Path(aiokvoffload.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: str(node.module) for node in imports for alias in node.names}
    homes.pop("TYPE_CHECKING")
    return homes


def test_every_public_name_is_what_type_checkers_take_it_for() -> None:
    homes = declared()
    assert sorted([*homes, "preload"]) == sorted(aiokvoffload.__all__)
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


SERVE_AND_SEE_WHAT_THE_LOOP_IMPORTS = """
import asyncio, functools, tempfile, threading, torch
import aiokvoffload as kv

imported = []

class Watch:
    def find_spec(self, name, *_):
        if name.startswith("aiokvoffload") and threading.current_thread() is threading.main_thread():
            imported.append(name)

async def main(directory):
    blocks = torch.zeros(4, 1024, dtype=torch.int64)
    kv_caches = kv.CanonicalKVCaches([kv.CanonicalKVCacheTensor(blocks, 8192)], [[kv.CanonicalKVCacheRef(0, 8192)]])
    disk = kv.DiskConfig(directories=(directory,), disk_bytes=1 << 20, namespace="test")
    config = kv.TieringOffloadingConfig(
        cpu=kv.CPUOffloadingConfig(cpu_bytes=1 << 20, device="host"),
        tiers=(kv.TierConfig(make=functools.partial(kv.DiskTier, disk)),),
    )
    async with kv.TieringOffloadingSpec(config).open(kv_caches) as offload:
        async with offload.request("request") as request:
            await request.store([kv.make_offload_key(b"key", 0)], [0])
            await request.load([kv.make_offload_key(b"key", 0)], [1])
        offload.events.subscribe()
        offload.statistics()

if sys.argv[1:]:
    kv.preload()
sys.meta_path.insert(0, Watch())
with tempfile.TemporaryDirectory() as directory:
    asyncio.run(main(directory))
print(len(imported), *imported[-3:])
"""


@pytest.mark.parametrize("preload", [True, False])
def test_after_a_preload_nothing_is_imported_on_the_loop(forks: Forks, preload: bool) -> None:
    """I10."""
    result = forks.run(without() + SERVE_AND_SEE_WHAT_THE_LOOP_IMPORTS, *["preload"] * preload)
    assert result.stderr == ""
    assert (result.stdout == "0\n") is preload, result.stdout


def test_a_preload_leaves_out_what_an_extra_lacks(forks: Forks) -> None:
    program = """
import aiokvoffload as kv
kv.preload()
assert kv.CPUOffloadingSpec
try:
    kv.DiskTier
except ModuleNotFoundError as error:
    print(error)
"""
    result = forks.run(without("xxhash") + program)
    assert (result.stdout, result.stderr) == ("the disk tier needs xxhash: pip install 'aiokvoffload[disk]'\n", "")


def test_a_preload_does_not_hide_a_module_that_we_lack(forks: Forks) -> None:
    result = forks.run(without("aiokvoffload.service.pump") + "import aiokvoffload as kv; kv.preload()")
    assert result.returncode == 1
    assert "aiokvoffload.service.pump" in result.stderr

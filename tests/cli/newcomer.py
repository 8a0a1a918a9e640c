"""The command on the machine of somebody who installed one extra and nothing else."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

WITHOUT_OTHER_EXTRAS = """
import sys

blocked = set(sys.argv.pop(1).split())

class Without:
    # Finds what a finder finds, but for blocked packages, of which it says what is said of missing ones.

    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in blocked else self.finder.find_spec(name, path, target)

sys.meta_path = [Without(finder) for finder in sys.meta_path]
from aiokvoffload.cli.main import main
main()
"""


def run_with_only(extra: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the command where the packages that only other extras bring cannot be imported."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    others = {name for extra in extras for name in names_of_extra(extras, extra)} - names_of_extra(extras, extra)
    assert {"triton", "matplotlib", "pytest"} <= others
    command = [sys.executable, "-c", WITHOUT_OTHER_EXTRAS, " ".join(others), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603


def names_of_extra(extras: dict[str, list[str]], extra: str) -> set[str]:
    """The packages that an extra brings, with those of the extras that it names."""
    names: set[str] = set()
    for requirement in extras[extra]:
        if inner := re.match(r"aiokvoffload\[(.*)\]", requirement):
            names |= {name for other in inner[1].split(",") for name in names_of_extra(extras, other)}
        elif package := re.match(r"[\w-]+", requirement):
            names.add(package[0].replace("-", "_"))
    return names

"""Modules that are imported when they are first used: what a command does takes seconds to import, its help must not.

Knows which packages only an extra brings; knows no command.
"""

import importlib
from typing import Any

from aiokvoffload.errors import ConfigError

_ONLY_IN_EXTRAS = {
    "accelerate",
    "gguf",
    "msgspec",
    "prometheus_client",
    "starlette",
    "transformers",
    "uvicorn",
    "xxhash",
    "zmq",
}


class Deferred:
    """A module that is imported when something of it is first asked for; type checkers are shown an import instead.

    Args:
        name: the module's whole name.
        extra: what brings the packages that it needs.
    """

    def __init__(self, name: str, *, extra: str = "cli") -> None:
        self._name = name
        self._extra = extra

    def __getattr__(self, attribute: str) -> Any:
        """What the module calls so.

        Raises:
            ConfigError: the extra is not installed.
        """
        try:
            module = importlib.import_module(self._name)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing not in _ONLY_IN_EXTRAS:
                raise
            raise ConfigError(f"{missing} is missing: pip install 'aiokvoffload[{self._extra}]'") from error
        return getattr(module, attribute)

    def __repr__(self) -> str:
        return f"<Deferred {self._name}>"

"""What draws pictures, which is not always installed. Knows no figures."""

import importlib
from typing import Any

from aiokvoffload.errors import ArgumentError


def import_matplotlib() -> Any:
    """The module that draws without a screen; called before a long run too, to find out that it is missing.

    Raises:
        ArgumentError: it is not installed.
    """
    try:
        return importlib.import_module("matplotlib.figure")
    except ModuleNotFoundError as error:
        raise ArgumentError("--plot needs matplotlib: pip install 'aiokvoffload[plot]'") from error

"""The disk tier's configuration is checked when it is made."""

from typing import Any

import pytest

from aiokvoffload.errors import ConfigError
from aiokvoffload.tiering.disk.config import DiskConfig


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"directories": ()}, "directories must be a tuple of at least one path"),
        ({"directories": "/mnt/a"}, "directories must be a tuple of at least one path, got '/mnt/a'"),
        ({"directories": ("/mnt/a", "/mnt/b/../a")}, "directories must be distinct"),
        ({"directories": ["/mnt/a"]}, "directories must be a tuple"),
        ({"directories": {"/mnt/a"}}, "directories must be a tuple"),
        ({"directories": ("",)}, "directories must be paths, neither empty"),
        ({"directories": ("/mnt/a", 7)}, "directories must be paths, .*got 7"),
        ({"directories": (None,)}, "directories must be paths"),
        ({"directories": (b"/mnt/a",)}, "directories must be paths"),
        ({"directories": ("/mnt/\0a",)}, "directories must be paths, neither empty nor with a NUL"),
        ({"name": ""}, "name must be text"),
        ({"name": 7}, "name must be text"),
        ({"policy": None}, "policy must be the name of a cache policy, got None"),
        ({"namespace": "\ud800"}, "namespace must be text that UTF-8 can say"),
        ({"disk_bytes": 0}, "disk_bytes must be a whole number above 0"),
        ({"namespace": ""}, "namespace must be text"),
        ({"threads": 0}, "threads must be a whole number above 0"),
        ({"threads": 1025}, "threads must be at most 1024, got 1025"),
        ({"threads": 2**70}, "threads must be at most 1024"),
        ({"verify": 1}, "verify must be True or False, got 1"),
        ({"close_timeout_s": -1}, "close_timeout_s must be a number above 0"),
        ({"max_pending_stores": 0}, "max_pending_stores"),
    ],
)
def test_a_wrong_field_is_named_with_its_value(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DiskConfig(**{"directories": ("/mnt/a",), "disk_bytes": 1 << 30, "namespace": "model", **fields})

"""The `aiokvoffload` command."""

"""Cache policies by name; see `aiokvoffload.registry`."""

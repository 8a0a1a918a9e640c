"""Cache policies by name; see `aiokvoffload.registry`, and `docs/policies.md` for which is what."""

"""The front door: the manager as an async service."""

"""Traces that come with the package."""

from pathlib import Path

SAMPLE_TRACE = Path(__file__).parent / "conversation_sample.jsonl"
"""A small one; the README beside it says how it was cut."""

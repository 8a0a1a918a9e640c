"""Which models there are, by name. Knows shapes; imports nothing that makes one."""

from aiokvoffload.errors import ArgumentError

SMOLLM2 = "smollm2"

RANDOM_SHAPES: dict[str, dict[str, int]] = {
    "random": {
        "vocab_size": 512,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
    },
    "random-1b": {
        "vocab_size": 128_256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
    },
    "random-8b": {
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
}
"""Llama shapes: a small one for trying things, and those of Llama 3.2 1B and 3.1 8B for timing."""
MODEL_NAMES = (SMOLLM2, *RANDOM_SHAPES)


def require_name(name: str) -> None:
    """Check that there is such a model, which takes no import of what loads it.

    Raises:
        ArgumentError: there is none.
    """
    if name not in MODEL_NAMES:
        raise ArgumentError(f"model must be one of {', '.join(MODEL_NAMES)}, got {name!r}")

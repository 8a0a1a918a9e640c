"""The baseline: the same model in plain Hugging Face, with its own attention and its concatenating cache.

Knows the model; to be measured before pages are laid under it, since that replaces its attention.
"""

import inspect
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers

_ATTENTION = "sdpa"


@dataclass(frozen=True, slots=True)
class PlainTimes:
    """Seconds for a prompt in one forward pass, and for its last tokens when all before them is in the cache."""

    whole_s: float
    last_s: float


class PlainModel:
    """Computes prompts, each with a cache of its own.

    Args:
        model: a causal LM of transformers, on its device.
    """

    def __init__(self, model: Any) -> None:
        model.set_attn_implementation(_ATTENTION)
        self._model = model
        # Newer versions of transformers warn of the older name, and older ones ignore the newer.
        self._cache_name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    @torch.inference_mode()
    def measure(self, tokens: Sequence[int], *, last_tokens: int) -> PlainTimes:
        """Compute a prompt; blocks until it is done."""
        cache: Any = transformers.DynamicCache()
        whole_s = self._forward_s(tokens, cache)
        cache.crop(-last_tokens)
        return PlainTimes(whole_s, self._forward_s(tokens[-last_tokens:], cache))

    def _forward_s(self, tokens: Sequence[int], cache: Any) -> float:
        self._synchronize()
        began_s = time.perf_counter()
        ids = torch.tensor([list(tokens)]).to(self._model.device)
        output = self._model(input_ids=ids, use_cache=True, logits_to_keep=1, **{self._cache_name: cache})
        int(output.logits[0, -1].argmax())  # known on the host, as a server must know it
        return time.perf_counter() - began_s

    def _synchronize(self) -> None:
        if self._model.device.type == "cuda":
            torch.cuda.synchronize(self._model.device)

    def let_go(self) -> None:
        """Give back what the allocator keeps of the caches."""
        if self._model.device.type == "cuda":
            torch.cuda.empty_cache()

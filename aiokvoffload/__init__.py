"""KV-cache offloading for LLM servers written on asyncio: GPU to pinned CPU memory and back, awaited."""

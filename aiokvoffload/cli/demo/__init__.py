"""A small inference engine around a Hugging Face model, whose KV cache is offloaded by this library's public API.

Read it in this order: `engine` (the life of a request), `pages` (who has which block), `batcher` (what runs next),
`model` (attention over pages).
"""

"""`aiokvoffload bench serve`: what offloading brings a model's requests, and what it costs them, in one run."""

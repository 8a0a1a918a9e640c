"""What lies below CPU memory: secondary tiers, and the chain that leads to them."""

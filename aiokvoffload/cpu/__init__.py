"""The primary tier: chunks in pinned CPU memory."""

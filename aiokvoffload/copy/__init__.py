"""Bytes: from tensors to pointers, from ids to fragments, from fragments to copies."""

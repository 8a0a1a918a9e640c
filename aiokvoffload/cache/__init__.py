"""Slots and order, for every tier that has slots: the pool, the policies, and what a common prefix is."""

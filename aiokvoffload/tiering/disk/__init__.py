"""A tier on local disks: checked bytes, a hard bound, ordered commits, verified recovery."""

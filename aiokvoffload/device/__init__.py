"""What a stream and an event are, on a GPU and on a machine without one."""

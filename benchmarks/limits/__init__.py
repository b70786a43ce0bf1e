"""From how many clients on it is worth it, at which epsilon: the gain over a client alone."""

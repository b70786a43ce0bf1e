"""Only to reproduce the paper."""

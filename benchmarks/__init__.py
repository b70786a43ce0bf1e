"""Measurements that are too long for the tests: speed, the paper's figures, other packages."""

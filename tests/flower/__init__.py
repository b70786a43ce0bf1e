"""Tests of the federation on Flower: a package, since its files share test doubles."""

"""Bytes from nowhere, for everything that reads what others have written: see targets.py."""

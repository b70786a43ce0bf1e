"""What the documentation is written and checked with: no part of the package."""

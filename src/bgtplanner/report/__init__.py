"""Show it: what a run looks like on a terminal."""

"""How to spend it: the planner and its baselines. NumPy and SciPy only; never sees a rating."""

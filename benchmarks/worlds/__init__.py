"""Is the planner ever worse than an even schedule in a federation that nobody tuned it for?"""

"""Is the planner ever worse than an even schedule in a loop that it knows nothing about?"""

"""How much a planner loses against one that knows everything."""

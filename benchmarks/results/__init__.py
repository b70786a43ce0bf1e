"""How good the preset `recommended` is, what its planner is worth, what each part adds."""

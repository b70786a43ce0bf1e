"""What is learned: models, metrics, and references that share nothing. Never sees a budget."""

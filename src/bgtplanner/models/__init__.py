"""What is learned: models, metrics, and what needs nobody else. Never sees a budget."""

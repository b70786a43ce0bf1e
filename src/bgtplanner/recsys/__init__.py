"""What is learned: ratings, models, metrics. Never sees a budget."""

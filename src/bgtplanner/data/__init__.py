"""What there is to learn from: ratings, how they are split, and where they come from."""

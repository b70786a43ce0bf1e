"""What hostile clients can do to the model, with and without what stops them."""

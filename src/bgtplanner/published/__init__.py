"""What is published: the model file, and lists made from it, with NumPy alone."""

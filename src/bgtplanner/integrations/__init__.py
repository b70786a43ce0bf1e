"""A run where people already look: TensorBoard and MLflow."""

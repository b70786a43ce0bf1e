"""What may be spent: budgets, accounting, mechanisms, the ledger. NumPy and SciPy only."""

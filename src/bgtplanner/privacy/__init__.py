"""What may be spent: budgets, accountants, mechanisms and the ledger. NumPy and SciPy only."""

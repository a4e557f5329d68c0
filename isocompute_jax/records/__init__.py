"""What every room passes to the next: problems, rollouts, metrics and run directories (NumPy only)."""

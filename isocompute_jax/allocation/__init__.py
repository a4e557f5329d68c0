"""Who gets how many rollouts, and when n grows: pure functions of what a run has seen, in NumPy."""

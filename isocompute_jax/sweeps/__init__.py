"""Sweeps: a grid of runs, executed side by side and resumable as a whole."""

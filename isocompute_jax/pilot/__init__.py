"""A pilot: what a small share of a budget says of how to spend the rest, before any run."""

"""Ablations: a recipe, the recipe with one thing changed at a time, and what each change costs."""

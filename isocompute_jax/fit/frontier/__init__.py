"""How to spend a budget: reductions of the model's draws, and beside them the frontier as in the paper.

answers, next_runs, optimal, beside  what the draws say of a budget, of further runs, of n*(C), and of schedules
paper                                records, curves and their upper envelope: one section of the report
sigmoid                              the law of n*(C), for both
"""

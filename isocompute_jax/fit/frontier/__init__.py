"""The compute-optimal frontier over configurations: who leads where, how sure that is, and what follows for a budget.

envelope         the best curve at each compute, with exact switch points
bootstrap        the experiment repeated on paper; the interval of a switch point
switch_evidence  how well the evaluations bear a switch out
ties             leads and ties by the evaluations alone
allocation       n*(C) and its sigmoid law
recommendation   how to spend a budget
"""

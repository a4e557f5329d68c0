"""The compute-optimal frontier over configurations: who leads where, how sure that is, and what follows for a budget.

envelope        the best curve at each compute, with exact switch points
bootstrap       the experiment repeated on paper; the interval of a switch point
switches        how well the evaluations and the seeds bear a switch out
allocation      n*(C) and its sigmoid law
forecast        joint draws of all curves, inside the data and beyond; `collapse` says where they may fall
standings       who leads at one compute and who ties: by the evaluations, by draws or by fits
recommendation  how to spend a budget
schedules       runs that change n themselves, beside the frontier
"""

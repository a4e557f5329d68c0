"""One learning curve per configuration: seeds averaged, a monotone form fitted, and how well its parameters are known.

seeds           the runs of a configuration, and their mean curve
screening       which evaluations count: records, outliers (falls: what comes after a collapse)
forms           the equations (hill, logistic, expsat, power)
fit_options     what is held, bounded or weighted, and curves of any lengths as one batch
solver          batched least squares
uncertainty     noise with memory, standard errors, profile intervals
identification  what a fit says of a curve, and why a parameter is not identified
fitting         all of these in order: `fit_curves`
diagnostics     what fitted curves are asked beyond their parameters: holdout, profiles of A, ScaleRL's comparisons
seed_noise      what seeds say of the noise of a curve
posterior       what a curve may yet be, under each form
"""

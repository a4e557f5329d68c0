"""One learning curve per configuration: a monotone form fitted, and how well its parameters are known.

forms        the equations (hill, logistic, expsat, power)
fit_options  what is held, bounded or weighted, and curves of any lengths as one batch
solver       batched least squares
uncertainty  noise with memory, levels of seeds, profile intervals
fitting      all of these in order: `fit_curves`
screening    which evaluations are fitted: record-breaking ones, or those up to a peak
scalerl      ScaleRL's grid, common asymptote and held-out second half
"""

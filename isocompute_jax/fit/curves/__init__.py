"""One learning curve per configuration: seeds averaged, a monotone form fitted, and how well its parameters are known.

seeds               the runs of a configuration, and their mean curve
points_to_fit       which evaluations count
forms               the equations (hill, logistic, expsat, power)
fit_options         what is held, bounded or weighted
padding             curves of any lengths as one batch
solver              batched least squares
uncertainty         noise with memory, standard errors, profile intervals
identification      what the data pin down, and why a parameter is not identified
fitting             all of these in order: `fit_curves`
asymptote_profiles  how the fit worsens as A is moved
holdout             how the first part of a curve predicts the rest
scalerl             ScaleRL's comparison under one asymptote, and its grid procedure
"""

"""Plan before you pay: the learner's step compiled for accelerators that are not here, and what a run on them takes."""

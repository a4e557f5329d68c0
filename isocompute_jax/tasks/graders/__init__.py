"""How completions become rewards: one grader for each kind of problem."""

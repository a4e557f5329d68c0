"""What can be asked of a sweep beside its frontier: a function for each question, and its answer as values.

A module has one subject: functions that take runs or a `SweepResult`, and one `compare_...` that answers the question
as `comparison.ComparisonResult`s, or with none where the sweep cannot. `questions` asks them all.
"""

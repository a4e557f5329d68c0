"""What can be asked of a sweep beside its frontier; each question is a function, and a section where the data allow it.

A module has one question: a function that takes runs or a `SweepResult` and returns numbers, and `section`, which
puts them into words, a table and a picture for the report, or returns nothing where the sweep cannot answer.
`questions` names them all, in the order of the report.
"""

"""What a completion is worth: one grader per task, found by name (`registry`)."""

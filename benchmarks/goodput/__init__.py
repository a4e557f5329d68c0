"""How many steps an hour a cluster is worth that waits, fails and is started again: a simulation by events."""

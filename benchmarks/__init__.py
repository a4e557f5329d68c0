"""What measures speed and memory; never part of the tests."""

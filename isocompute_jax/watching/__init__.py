"""A page in the browser that shows runs while they go on, from their directories alone."""

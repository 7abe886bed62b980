"""Takes out of a trace what must not travel."""

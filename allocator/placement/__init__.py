"""Which model runs on which slice."""

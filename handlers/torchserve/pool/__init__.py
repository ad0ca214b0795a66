"""A worker process of several models: connections of many workers, one batch at a time."""

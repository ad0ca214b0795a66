"""A worker that takes its batches from a tensor queue."""

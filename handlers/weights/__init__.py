"""Weights of models: one copy on the host for all workers, and hot copies of it."""

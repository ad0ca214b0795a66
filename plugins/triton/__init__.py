"""Triton: the same policies through Triton's own plug points."""

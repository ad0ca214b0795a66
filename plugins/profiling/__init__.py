"""Measuring a model, keeping profiles, planning with them."""

"""Packrat: from a profile to the best ⟨instances, threads, batch⟩."""

"""Models and what we know of them: sample models as source, and packing."""

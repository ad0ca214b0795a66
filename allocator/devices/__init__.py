"""GPUs and their instances: one name for each."""

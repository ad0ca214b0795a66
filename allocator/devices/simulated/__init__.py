"""GPUs that are only simulated: NVML's library, of which several processes see the same state."""

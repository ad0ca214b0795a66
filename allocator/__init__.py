"""Who gets which cores, slices and memory."""

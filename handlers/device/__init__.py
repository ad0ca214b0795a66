"""Preemption and tensor queues on NVIDIA devices."""

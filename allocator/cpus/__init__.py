"""The CPUs of this host: what there is, who holds which core, which cores a worker gets."""

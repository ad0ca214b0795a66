"""A cluster of GPUs with MIG, simulated, under the policies that PROTEAN's paper compares."""

"""Which work stands still for which: states, where a pass is cut, who may run beside whom."""

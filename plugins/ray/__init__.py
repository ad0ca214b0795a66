"""Many machines on Ray: an actor for each machine, a controller, and the gateways.

Ray starts processes on machines, starts them again, and lets them find each other; requests never
pass through it. Which machine a request goes to, how many there are and how they are got is said by
the pure policies of ``allocator/cluster``. Ray is optional: what needs it is imported when asked.
"""

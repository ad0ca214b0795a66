"""``shunter doctor``: what this machine has, what it lacks, and the command that mends it.

``facts`` reads the host and decides nothing; ``checks`` decides and touches nothing.
"""

"""Where a worker runs: its cores, its threads, its memory, how gently it starts."""

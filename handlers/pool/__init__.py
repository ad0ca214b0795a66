"""Several models in one worker process, of which none notices the others."""

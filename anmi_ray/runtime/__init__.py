"""All that is Ray and not a stage: the session, tasks, exchange, capacity, checkpoints, status, metrics."""

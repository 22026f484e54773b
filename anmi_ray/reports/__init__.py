"""Pages that a person reads, made from plain numbers: of runs and campaigns; and the pictures of commands."""

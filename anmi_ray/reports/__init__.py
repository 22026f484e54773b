"""Pages that a person reads, made from plain numbers: of runs, campaigns, mining rules, distilled judges."""

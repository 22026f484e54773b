"""The floor: errors, ids, scales, records, logs. Imports nothing else of the package."""

"""Tuning campaigns: trials of settings, the search for the next one, and what a campaign leaves."""

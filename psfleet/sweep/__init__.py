"""Studies: many trials of one job with other settings, each on one worker."""

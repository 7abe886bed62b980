"""What to change: pure rules from an Analysis to findings; every saving comes from analysis/forecast."""

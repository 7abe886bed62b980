"""One module per question about a run; `pipeline` asks them in order."""

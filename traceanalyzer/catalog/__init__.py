"""What newcomers edit: GPUs, kernel rules and op models, each a data file with its loader and a test."""

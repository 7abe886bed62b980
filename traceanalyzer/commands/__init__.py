"""The command line: one thin module per command, put together in `app`."""

"""The server: traces arrive, are analysed in children, and are read by people."""

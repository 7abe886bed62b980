"""The tables of the server, the engine they live in and the migrations that make them."""

"""Work for kernels that ran without shapes: replays of graphs, and steps recorded without them."""

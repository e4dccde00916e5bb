"""Programs that the benchmarks start: clients and servers, ours and the official SDK's, each in its own process."""

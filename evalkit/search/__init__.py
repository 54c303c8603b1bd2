"""What agents search: a corpus fetched by name and locked by hash, and the tools over it."""

"""Tables and figures of finished runs, read from their directories."""

"""The built-in executors, one module each."""

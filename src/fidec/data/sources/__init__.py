"""The built-in data sources, one module each: the module's name is the scheme, its `SOURCE` is the source."""

"""A policy server: openpi's websocket protocol, and JSON over HTTP, on one port (docs/serve.md)."""

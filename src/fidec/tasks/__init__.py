"""The benchmark tasks as data: what is known of a task beyond its environment, and where it comes from."""

from fidec.tasks.ogbench import Settings, settings

__all__ = ["Settings", "settings"]

"""The benchmark as data: its tasks, how they are scored, what was published for them, and by whom."""

from fidec.tasks.benchmark import CATEGORIES, CATEGORY_OF, TASKS, Task, family_of, find, protocol_of, source_of
from fidec.tasks.protocol import Protocol
from fidec.tasks.published import Family, Published
from fidec.tasks.reported import Reported

__all__ = [
    "CATEGORIES",
    "CATEGORY_OF",
    "TASKS",
    "Family",
    "Protocol",
    "Published",
    "Reported",
    "Task",
    "family_of",
    "find",
    "protocol_of",
    "source_of",
]

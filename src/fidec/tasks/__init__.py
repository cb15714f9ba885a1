"""The benchmark as data: its tasks, how they are scored, what was published for them, and by whom.

The rows of the paper's tables are 73 tasks in the offline setting and 14 in the offline-to-online setting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fidec.tasks.paper import METHODS, ONLINE_METHODS, Protocol, Reported, protocol, table
from fidec.tasks.published import FAMILIES, Family, Published


@dataclass(frozen=True)
class Task:
    """A row of the paper's tables: a task in the offline or in the offline-to-online setting."""

    id: str
    benchmark: str  # ogbench or d4rl
    setting: str  # offline, or online for offline-to-online
    category: str  # the paper's
    alias_of: str | None  # the numbered task that an id without a number stands for
    observation_shape: tuple[int, ...]
    action_dim: int
    horizon: int
    data_transitions: int | None
    reward_shift: float  # added to the data's rewards
    paper: Mapping[str, Any] = field(compare=False, repr=False)
    """Method -> `Reported`; in the online setting a pair: before and after the online phase."""
    family: Family = field(compare=False, repr=False)

    @property
    def visual(self) -> bool:
        return len(self.observation_shape) == 3

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods of the paper's table."""
        return METHODS if self.setting == "offline" else ONLINE_METHODS

    def protocol(self, method: str) -> Protocol:
        """The protocol behind the paper's number of a method."""
        return protocol(self.benchmark, visual=self.visual, method=method, setting=self.setting)

    def options(self, method: str, preset: str = "recommended") -> dict[str, Published]:
        """The options of a method that this task changes, from the source that the preset stands for."""
        return self.family.options(method, preset, self.setting)


def _rows() -> Iterator[Task]:
    """The rows in the order of the paper's table, which is the order of paper.csv."""
    for (name, phase), numbers in table().items():
        family, paper, alias = _family_of(name), numbers, None
        if family is None or phase not in ("offline", "before"):
            continue
        if phase == "before":
            after = table()[name, "after"]
            paper = {method: (before, after[method]) for method, before in numbers.items()}
            alias = _numbered(name, family) if family.benchmark == "ogbench" else None
        yield Task(
            id=name,
            benchmark=family.benchmark,
            setting="online" if phase == "before" else "offline",
            category=family.category,
            alias_of=alias,
            observation_shape=family.observation_shape,
            action_dim=family.action_dim,
            horizon=family.horizon,
            data_transitions=family.transitions,
            reward_shift=family.reward_shift,
            paper=paper,
            family=family,
        )


def _family_of(name: str) -> Family | None:
    return FAMILIES.get(name) or FAMILIES.get(name.partition("-singletask")[0])


def _numbered(name: str, family: Family) -> str:
    """The id with its task's number: `...-singletask-v0` means the family's default task."""
    return name.replace("-singletask-v0", f"-singletask-task{family.default_task}-v0")


def bare(name: str) -> str:
    """An id without its benchmark in front."""
    return name.removeprefix("ogbench:").removeprefix("d4rl:")


def family_of(name: str) -> Family | None:
    """The family of an id, which need not be in the tables; None if no options are published for it."""
    return _family_of(bare(name))


def find(name: str, setting: str = "offline") -> Task | None:
    """The benchmark row of an id, or None."""
    family = family_of(name)
    if family is None:
        return None
    wanted = _numbered(bare(name), family)
    return next((t for t in TASKS if t.setting == setting and wanted in (t.id, t.alias_of)), None)


def protocol_of(name: str, method: str, setting: str = "offline") -> Protocol:
    """The protocol of any id; OGBench's if the task is not in the tables."""
    family = family_of(name)
    benchmark = family.benchmark if family else "ogbench"
    return protocol(benchmark, visual=bare(name).startswith("visual-"), method=method, setting=setting)


def source_of(name: str) -> str | None:
    """The source of a task's own data; None for an id of no benchmark. An id with a family in front is a source."""
    if ":" in name:
        return name
    family = family_of(name)
    if family is None and "-singletask-" not in name:  # OGBench has more tasks than the families
        return None
    return f"{family.benchmark if family else 'ogbench'}:{name}"


TASKS: tuple[Task, ...] = tuple(_rows())
CATEGORY_OF: dict[str, str] = {task.id: task.category for task in TASKS}
CATEGORIES: dict[str, tuple[int, dict[str, Reported]]] = {
    name: (sum(task.category == name and task.setting == "offline" for task in TASKS), numbers)
    for (name, phase), numbers in table().items()
    if phase == "category"
}
"""The paper's rows by category: the number of tasks, and the number of each method."""

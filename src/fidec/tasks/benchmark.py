"""The paper's 73 offline and 14 offline-to-online tasks as rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fidec.tasks import d4rl, ogbench, reported
from fidec.tasks.protocol import Protocol, protocol
from fidec.tasks.reported import Reported
from fidec.tasks.settings import Family, Setting

FAMILIES: dict[str, Family] = {**ogbench.FAMILIES, **d4rl.FAMILIES}
SETTINGS = ("offline", "online")


@dataclass(frozen=True)
class Task:
    """A row of the benchmark: a task in one setting."""

    id: str
    suite: str  # ogbench or d4rl
    setting: str  # offline, or online: offline first, then online
    category: str  # the paper's
    alias_of: str | None  # the numbered task that an id without a number stands for
    observation_shape: tuple[int, ...]
    action_dim: int
    horizon: int
    data_transitions: int | None
    reward_shift: float  # added to the data's rewards
    paper: Mapping[str, Any] = field(compare=False, repr=False)
    """Method -> `Reported`; in the online setting the pair before and after the online phase."""
    family: Family = field(compare=False, repr=False)

    @property
    def visual(self) -> bool:
        return len(self.observation_shape) == 3

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods of the paper's table."""
        return reported.METHODS if self.setting == "offline" else reported.ONLINE_METHODS

    def protocol(self, method: str) -> Protocol:
        """How the paper's number of a method was made."""
        return protocol(self.suite, visual=self.visual, method=method, setting=self.setting)

    def options(self, method: str, preset: str = "recommended") -> dict[str, Setting]:
        """What this task changes in a method's configuration, from the source that the preset stands for."""
        return self.family.options(method, preset, self.setting)


def _task(family: Family, name: str, setting: str, alias_of: str | None = None) -> Task:
    table = reported.table()
    if setting == "offline":
        paper: Mapping[str, Any] = table[name, "offline"]
    else:
        before, after = table[name, "before"], table[name, "after"]
        paper = {method: (before[method], after[method]) for method in before}
    space = family.space
    return Task(
        id=name,
        suite=family.suite,
        setting=setting,
        category=family.category,
        alias_of=alias_of,
        observation_shape=space.observation_shape,
        action_dim=space.action_dim,
        horizon=space.horizon,
        data_transitions=space.transitions,
        reward_shift=family.reward_shift,
        paper=paper,
        family=family,
    )


def _rows() -> tuple[Task, ...]:
    """In the order of the paper's table, which is that of paper.csv."""
    rows = []
    for name, phase in reported.table():
        family = _family_of(name)
        if family is None or phase not in ("offline", "before"):
            continue
        online = phase == "before"
        alias = _numbered(name, family) if online and family.suite == "ogbench" else None
        rows.append(_task(family, name, "online" if online else "offline", alias))
    return tuple(rows)


def _family_of(name: str) -> Family | None:
    return FAMILIES.get(name) or FAMILIES.get(name.partition("-singletask")[0])


def _numbered(name: str, family: Family) -> str:
    """The id with its task's number: `...-singletask-v0` means the family's default task."""
    return name.replace("-singletask-v0", f"-singletask-task{family.default_task}-v0")


def bare(name: str) -> str:
    """An id without the suite in front."""
    return name.removeprefix("ogbench:").removeprefix("d4rl:")


def family_of(name: str) -> Family | None:
    """The family of an id, also of ids beside the benchmark's rows; None if nobody published settings for it."""
    return _family_of(bare(name))


def find(name: str, setting: str = "offline") -> Task | None:
    """The benchmark row of an id, or None."""
    family = family_of(name)
    if family is None:
        return None
    wanted = _numbered(bare(name), family)
    return next((t for t in TASKS if t.setting == setting and wanted in (t.id, t.alias_of)), None)


def protocol_of(name: str, method: str, setting: str = "offline") -> Protocol:
    """The protocol of any id; OGBench's where the task is beside the benchmark's rows."""
    family = family_of(name)
    suite = family.suite if family else "ogbench"
    return protocol(suite, visual=bare(name).startswith("visual-"), method=method, setting=setting)


def source_of(name: str) -> str:
    """A task's own data source. An id that names its suite is one already."""
    family = family_of(name)
    return name if ":" in name else f"{family.suite if family else 'ogbench'}:{name}"


TASKS: tuple[Task, ...] = _rows()
CATEGORY_OF: dict[str, str] = {task.id: task.category for task in TASKS}
CATEGORIES: dict[str, tuple[int, dict[str, Reported]]] = {
    name: (sum(task.category == name and task.setting == "offline" for task in TASKS), numbers)
    for (name, phase), numbers in reported.table().items()
    if phase == "category"
}
"""The paper's rows by category: how many tasks, and each method's number."""

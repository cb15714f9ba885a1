"""`fidec tasks [ID]`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from fidec import tasks
from fidec.cli.output import parse, print_json, print_table
from fidec.data.make.recipes import RECIPES


@dataclass(frozen=True)
class TasksArgs:
    """List the single-task ids of the installed OGBench, or show what is known of one."""

    task: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[ID]")] = None
    """A task id; ...-singletask-v0 means its family's default task."""
    family: str | None = None
    """Only ids that begin with this, such as cube."""
    json: bool = False
    """Print as JSON."""


def main(argv: list[str]) -> int:
    from fidec.envs.make import find_task, known_tasks

    args = parse(TasksArgs, argv, "fidec tasks")
    if args.task is not None:
        facts = _facts(find_task(args.task))
        if args.json:
            print_json(facts)
        else:
            print_table(("what", "value"), facts.items())
        return 0
    rows = [_facts(task) for task in known_tasks() if not args.family or task.id.startswith(args.family)]
    if args.json:
        print_json(rows)
        return 0
    columns = ("id", "is_default", "horizon", "data_can_be_made", "discount", "q_aggregate", "budget")
    print_table(columns, [[_cell(row[column]) for column in columns] for row in rows])
    return 0


def _facts(task: Any) -> dict[str, Any]:
    settings = tasks.settings(task.id)
    known = dataclasses.asdict(settings) if settings else {}
    rivals = settings.rivals.options() if settings and settings.rivals else {}
    return {
        **dataclasses.asdict(task),
        "dataset": task.dataset,
        "data_can_be_made": task.dataset in RECIPES,
        **{f.name: known.get(f.name) for f in dataclasses.fields(tasks.Settings) if f.name != "rivals"},
        **rivals,
    }


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    return "-" if value is None else str(value)

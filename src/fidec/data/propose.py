"""Propose a mapping file for a table, by the names of its columns (`fidec data map`)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from fidec.data.recordings import Recording, open_table
from fidec.errors import DataError

# By the part of a name before its number: action_0, tau3, "cmd.x".
_ACTION = r"(action|act|a|u|cmd|command|control|ctrl|tau|torque|target)s?([._\[ -].*|\d+\]?)?"
_SINGLE = {
    "episode": r"(episode|ep|traj|trajectory|demo|run|rollout)([._ ]?(index|id|number|idx))?",
    "time": r"(log[._])?(t|time|stamp|timestamp|seconds)([._ ](s|ns|us|ms|stamp))?",
    "reward": r"(next[._])?(reward|rew|r)",
    "success": r"(next[._]|is[._])?(success|succeeded|solved)",
    "terminal": r"(next[._]|is[._])?(terminal|terminated|done)s?",
    "truncation": r"(next[._]|is[._])?(truncat(ed|ion)|timeout)s?",
}
_COUNTERS = r"(index|frame([._]?(index|id))?|step|row|unnamed: 0|)"
_NUMBER = r"(u?int\d*|halffloat|float|double|bool)"
_NUMBERS = rf"{_NUMBER}|(large_|fixed_size_)?list<[^:]+: {_NUMBER}( not null)?>(\[\d+\])?|list of \d+"
_TYPES = {"episode": r"(?!.*list).*", "time": rf"{_NUMBER}|(timestamp|duration)\[.*"}  # of columns that may be others


def propose(types: Mapping[str, str]) -> dict[str, list[str]]:
    """The columns for each key of a mapping file, in the order of the file. What else is numbers is observed."""
    found: dict[str, list[str]] = {"observation": [], "action": []}
    for name, kind in types.items():
        low = name.lower().strip().lstrip("/")
        key = next((key for key, pattern in _SINGLE.items() if re.fullmatch(pattern, low)), "")
        if key and key not in found and re.fullmatch(_TYPES.get(key, _NUMBER), kind):
            found[key] = [name]
        elif not re.fullmatch(_NUMBERS, kind):
            continue
        elif re.fullmatch(_ACTION, low):
            found["action"].append(name)
        elif not re.fullmatch(_COUNTERS, low) and ".header." not in low:
            found["observation"].append(name)
    if "reward" in found:
        found.pop("success", None)  # rewards have one source
    return found


def proposal(files: list[Path], out: Path) -> str:
    """A mapping file for these tables, with a comment for what has to be checked."""
    first = open_table(files[0])
    names = dict(first.types)
    for other in files[1:]:
        types = open_table(other).types
        if unlike := sorted(set(types) ^ set(names)):
            has, lacks = (other, files[0]) if unlike[0] in types else (files[0], other)
            raise DataError(
                f"{lacks} has no column {unlike[0]!r}, but {has} has: map them one by one, or rename columns"
            )
        names |= {name: kind for name, kind in types.items() if not re.fullmatch(_NUMBERS, kind)}
    root = out.absolute().parent
    paths = [file.absolute() for file in files]
    if outside := [path for path in paths if not path.is_relative_to(root)]:
        raise DataError(f"{outside[0]} is not below {root}, the directory of {out.name}: choose another --out")
    found = propose(names)
    clock = []
    if isinstance(first, Recording) and first.topics:
        own = [topic for topic in first.topics if found["action"] and found["action"][0].startswith(f"{topic}.")]
        chosen = max(own, key=len) if own else first.topics[0]
        clock = [f"clock = {json.dumps(chosen)}  # its messages are the rows; other topics hold their last value"]
    lines = [
        "# Which columns are what. Check every line: it was proposed by the names of the columns.",
        f"files = {_list([str(path.relative_to(root)) for path in paths])}",
        f"observation = {_list(found.pop('observation'))}",
        f"action = {_list(found.pop('action'))}",
        *(f"{key} = {json.dumps(columns[0])}" for key, columns in found.items()),
        *clock,
        *(['# episode = "..."  # without it each file is an episode'] if "episode" not in found else []),
        *(
            ['# reward = "..."  # or success, or reward_function; without it train bc or flow_bc']
            if not {"reward", "success"} & found.keys()
            else []
        ),
        "# action_low = [-1.0]  # the bounds of the actions, if they are not in [-1, 1]",
        "# action_high = [1.0]",
        "",
        "# All columns:",
        *(f"#   {json.dumps(name)}  {kind}" for name, kind in names.items()),
    ]
    return "\n".join(lines) + "\n"


def _list(values: list[str]) -> str:
    return "[" + ", ".join(json.dumps(value) for value in values) + "]"

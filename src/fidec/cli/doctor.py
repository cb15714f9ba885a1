"""`fidec doctor`: what this machine has, and what may be missing."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from fidec.cli.parsing import parse, print_json
from fidec.launch import run

# Rendering is tried in a process of its own: a missing driver may abort it.
_RENDER = """
import mujoco
model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='1'/></worldbody></mujoco>")
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer = mujoco.Renderer(model, 16, 16)
renderer.update_scene(data)
renderer.render()
renderer.close()
"""


@dataclass(frozen=True)
class DoctorArgs:
    """Report JAX's devices, the installed extras, MuJoCo and headless rendering, versions, caches and free disk."""

    json: bool = False
    """Print as JSON."""


def main(argv: list[str]) -> int:
    args = parse(DoctorArgs, argv, "fidec doctor")
    facts = examine()
    if args.json:
        print_json(facts)
        return 0 if facts["ok"] else 1
    for name, value in facts.items():
        if isinstance(value, dict):
            print(f"{name}:")
            for key, item in value.items():
                print(f"  {key:<12} {item if item is not None else 'not installed'}")
        else:
            text = ", ".join(map(str, value)) if isinstance(value, list) else value
            print(f"{name:<14} {text}")
    return 0 if facts["ok"] else 1


def examine() -> dict[str, Any]:
    """Facts by name. `ok` is false if something that is installed does not work; a missing extra is no fault."""
    from fidec import compilation
    from fidec.data.cache import data_dir
    from fidec.store.versions import environment

    env = environment()
    cache = data_dir()
    place = next(p for p in (cache, *cache.parents) if p.exists())
    available = extras()
    has_simulator = available.get("ogbench") == "installed"
    missing = "not installed: pip install 'fidec[ogbench]'"
    simulator = _simulator() if has_simulator else missing
    return {
        "ok": not simulator.startswith("fails"),
        "python": env["python"],
        "platform": env["platform"],
        "backend": env["backend"],
        "devices": env["devices"],
        "cores": env["cpus"],
        "simulator": simulator,
        "rendering": _rendering() if has_simulator else missing,
        "cache": str(cache),
        "compiled": compilation.describe(),
        "free_disk": f"{shutil.disk_usage(place).free / 1e9:.1f} GB",
        "extras": available,
        "packages": env["packages"],
    }


def extras() -> dict[str, str]:
    """Each extra of the installed package: "installed", or what is missing and the command that installs it."""
    needs: dict[str, list[str]] = {}
    for requirement in metadata.requires("fidec") or ():
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        if extra and extra[1] not in ("all", "dev", "docs"):
            needs.setdefault(extra[1], []).append(re.match(r"[\w.-]+", requirement)[0])  # pyright: ignore
    return {extra: _status(extra, packages) for extra, packages in needs.items()}


def _status(extra: str, packages: list[str]) -> str:
    from fidec.store.versions import version

    if extra.startswith("cuda"):
        packages = [f"jax-{extra}-plugin"]  # the requirement is JAX itself, with an extra of its own
    missing = sorted({package for package in packages if version(package) is None})
    return f"without {', '.join(missing)}: pip install 'fidec[{extra}]'" if missing else "installed"


def _simulator() -> str:
    try:
        from fidec.envs.factory import make

        env = make("pointmaze-medium-navigate-singletask-v0")
        env.reset(seed=0)
        env.step(env.action_space.sample())
        env.close()
    except Exception as error:  # whatever is wrong here is what the user wants to read
        return f"fails: {type(error).__name__}: {error}"
    return "steps"


def _rendering() -> str:
    from fidec.envs.render import gl_environ

    environ = gl_environ()
    backend = environ.get("MUJOCO_GL") or os.environ.get("MUJOCO_GL") or "default"
    ended = run("-c", _RENDER, environ=environ, timeout=60)
    if ended is None:
        return f"hangs ({backend})"
    code, output = ended
    if code == 0:
        return f"works ({backend})"
    reason = (output.strip().splitlines() or ["no message"])[-1]
    return f"no headless OpenGL ({backend}): {reason}. Debian's libegl1 and libgl1-mesa-dri provide it."

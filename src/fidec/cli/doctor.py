"""`fidec doctor`: what this machine has, and what may be missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from fidec.cli.output import parse, print_json

# Rendering is tried in a process of its own: a missing driver may abort it.
_RENDER = """
import mujoco
model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='1'/></worldbody></mujoco>")
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer = mujoco.Renderer(model, 16, 16)
renderer.update_scene(data)
print(renderer.render().shape)
renderer.close()
"""


@dataclass(frozen=True)
class DoctorArgs:
    """Report JAX's backend and devices, MuJoCo and headless rendering, versions, cache and free disk."""

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
    """Facts by name; `ok` says whether training and evaluating will work (rendering is not needed for it)."""
    from fidec.data.cache import data_dir
    from fidec.store.versions import environment

    env = environment()
    cache = data_dir()
    place = next(p for p in (cache, *cache.parents) if p.exists())
    simulator = _simulator()
    return {
        "ok": simulator == "steps",
        "python": env["python"],
        "platform": env["platform"],
        "backend": env["backend"],
        "devices": env["devices"],
        "cores": env["cpus"],
        "simulator": simulator,
        "rendering": _rendering(),
        "cache": str(cache),
        "free_disk": f"{shutil.disk_usage(place).free / 1e9:.1f} GB",
        "packages": env["packages"],
    }


def _simulator() -> str:
    try:
        from fidec.envs.make import make

        env = make("pointmaze-medium-navigate-singletask-v0")
        env.reset(seed=0)
        env.step(env.action_space.sample())
        env.close()
    except Exception as error:  # whatever is wrong here is what the user wants to read
        return f"fails: {type(error).__name__}: {error}"
    return "steps"


def _rendering() -> str:
    from fidec.envs.make import gl_environ

    environ = {**os.environ, **gl_environ()}
    backend = environ.get("MUJOCO_GL")
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _RENDER],
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
        )
    except subprocess.TimeoutExpired:
        return f"hangs ({backend or 'default'})"
    if done.returncode == 0:
        return f"works ({backend or 'default'})"
    reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return f"no headless OpenGL ({backend or 'default'}): {reason}. Debian's libegl1 and libgl1-mesa-dri provide it."

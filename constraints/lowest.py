"""Print the lowest versions that pyproject.toml allows, as pip's constraints: `make test-lowest` installs them."""

import re
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
optional = project["optional-dependencies"]
extras = [line for name in ("ogbench", "d4rl", "minari", "video", "serve") for line in optional[name]]
for line in [*project["dependencies"], *extras]:
    if bound := re.match(r"([\w-]+)(?:\[.*\])?>=([\w.]+)", line):
        print(f"{bound[1]}=={bound[2]}")
print("dm_control==1.0.20")  # of OGBench; for the lowest mujoco pip would download all newer versions before this one

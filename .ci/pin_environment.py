"""Write the versions of requirements.lock.txt into environment.yml, for the packages that pyproject.toml names."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def normalise(name: str) -> str:
    """Return the name of a package as lock files spell it: lower case, with hyphens."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    """Rewrite the pip section of environment.yml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for part in project["optional-dependencies"].values() for line in part]
    lock = (ROOT / "requirements.lock.txt").read_text()
    locked = dict(re.findall(r"^([a-z0-9-]+)==([^\s;\\]+)", lock, re.M))
    pins = {}
    for requirement in project["dependencies"] + extras:
        name, extra = re.match(r"([\w.-]+)(\[.*?\])?", requirement).groups(default="")
        if name != project["name"]:
            pin = f"{name}{extra}=={locked[normalise(name)]}"
            pins[normalise(name)] = f'"{pin}"' if extra else pin  # YAML reads a bracket as a list
    environment = ROOT / "environment.yml"
    kept = environment.read_text().partition("  - pip:\n")[0]
    lines = [f"      - {pins[name]}\n" for name in sorted(pins)]
    environment.write_text(f"{kept}  - pip:\n{''.join(lines)}")


if __name__ == "__main__":
    main()

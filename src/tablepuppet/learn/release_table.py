"""Who sees which release in which algorithm; ``python -m tablepuppet.learn.release_table`` prints it.

It is generated from the registered ops: when an op is used, what it releases, and whether with noise.
"""

from __future__ import annotations

import tablepuppet.learn.party_ops  # noqa: F401 - registers every op
from tablepuppet.party.ops import REGISTRY, Op


def release_table() -> str:
    """The table in Markdown."""
    lines = ["| asked in | op | what the coordinator sees | noise |", "| --- | --- | --- | --- |"]
    for found in sorted(REGISTRY.values(), key=lambda each: (each.asked.lstrip("`").lower(), each.name)):
        lines.append(f"| {found.asked} | `{found.name}` | {', '.join(found.releases.names)} | {_noise(found)} |")
    return "\n".join(lines)


def _noise(found: Op) -> str:
    """Whether an op adds noise: always, never, or if an argument asks for it."""
    if isinstance(found.private, tuple):
        return f"if asked: {', '.join(f'`{name}`' for name in found.private)}"
    return "yes" if found.private else "no"


if __name__ == "__main__":
    print(release_table())

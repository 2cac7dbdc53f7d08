"""Small installed packages for a test: a module and the metadata that an installer would leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

PROVIDER = '''
from agent_env.sandboxes.local.unsafe_host import UnsafeHostProvider

class Provider(UnsafeHostProvider):
    """A provider of somebody else's."""

    name = "somebody"
'''


def install(
    root: Path,
    package: str,
    *,
    entries: Mapping[str, Mapping[str, str]],
    code: str = "",
    requires: Sequence[str] = (),
    extras: Sequence[str] = (),
) -> Path:
    """Installs a package into a folder, which belongs on the path.

    Args:
        root: The folder.
        package: Its distribution's name; the module has underscores.
        entries: Group → name → value.
        code: The module's text.
        requires: Requirements with their markers.
        extras: The extras that it provides.
    """
    module = package.replace("-", "_")
    info = root / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    (root / f"{module}.py").write_text(code)
    lines = ["Metadata-Version: 2.1", f"Name: {package}", "Version: 1.0", f"Summary: {package} for a test"]
    lines += [*(f"Requires-Dist: {needed}" for needed in requires), *(f"Provides-Extra: {extra}" for extra in extras)]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    text = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in named.items()) + "\n" for group, named in entries.items()
    )
    (info / "entry_points.txt").write_text(text)
    return root

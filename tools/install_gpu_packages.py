"""Install what the GPUs of this machine need, into the environment of the Python that runs it.

`make` runs it for .venv, and asv for each of its environments (asv.conf.json). It comes from the
checkout also where asv builds an older commit. Where everything is there, pip is not called. Where
pip cannot get a package, one line says so and the exit code is 3: what needs no GPU works.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

NOT_INSTALLED = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Install; 0, 2 where ROCMFORGE_GPU_PACKAGES is wrong, 3 where pip could not install."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], allow_abbrev=False)
    parser.add_argument(
        "--keep", action="store_true", help="keep a package that is there, whatever its version"
    )
    parser.add_argument(
        "--list", action="store_true", help="print what is to be installed, and install nothing"
    )
    args = parser.parse_args(argv)
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from rocmforge.gpu.packages import missing_packages  # of the checkout, not of the environment

    try:
        missing = missing_packages(args.keep)
    except ValueError as error:
        print(f"rocmforge: {error}", file=sys.stderr)
        return 2
    if args.list:
        print("".join(f"{name}\n" for name in missing), end="")
        return 0
    amd = [name for name in missing if name.startswith("hip-python")]
    others = [name for name in missing if name not in amd]
    lacking = [name for group in (amd, others) if group and not install(group) for name in group]
    if lacking:
        print(
            f"rocmforge: pip could not install {' '.join(lacking)} for this machine's GPU: "
            "benchmarks of the device gpu will show n/a; "
            "ROCMFORGE_GPU_PACKAGES names other packages, or none",
            file=sys.stderr,
        )
        return NOT_INSTALLED
    return 0


def install(requirements: Sequence[str]) -> bool:
    """Let pip install packages; return whether it could.

    hip-python 10 has its files in rocm-bindings-hip, older versions have them in hip-python. pip
    would remove the old version's files after it wrote the new one's, so the old one goes first.
    """
    old = [name for name in installed() if name.startswith(("hip-python", "rocm-bindings"))]
    if not old or not any(name.startswith("hip-python") for name in requirements):
        return pip("install", "--progress-bar", "off", *requirements)
    with tempfile.TemporaryDirectory() as folder:
        if not pip("download", "--dest", folder, *requirements):
            return False
        pip("uninstall", "--yes", *old)
        return pip("install", "--no-index", "--find-links", folder, *requirements)


def installed() -> list[str]:
    """Return the names of all packages of this environment."""
    names = (found.metadata["Name"] or "" for found in metadata.distributions())
    return sorted({name.lower().replace("_", "-") for name in names})


def pip(*words: str) -> bool:
    """Run pip; return whether it succeeded."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    return subprocess.run(command, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())

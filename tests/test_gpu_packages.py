"""Which packages a machine's GPUs need, and the script that installs them, over a recording pip."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from rocmforge.gpu import packages
from rocmforge.gpu.packages import CUDA_REQUIREMENTS, hip_requirement, missing_packages
from rocmforge.hardware import Rocm

CUDA, NVRTC = CUDA_REQUIREMENTS


@pytest.mark.parametrize(
    ("rocm", "wanted"),
    [
        (None, "10.0"),
        ("5.2.3-8", "6.4"),
        ("6.4.1-90", "6.4"),
        ("7.0.2", "7.0"),
        ("7.1.1-38", "7.1"),
        ("7.2.0", "7.2"),
        ("7.10.0rc20251201", "7.2"),
        ("10.0.0", "10.0"),
        ("10.1.0", "10.0"),
    ],
)
def test_the_hip_python_of_an_installed_rocm(
    rocm: str | None, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "find_rocm", lambda: Rocm(rocm, "/opt/rocm") if rocm else None)
    assert hip_requirement() == f"hip-python=={wanted}.*"


@pytest.mark.parametrize(
    ("amd", "rocm", "nvidia", "installed", "kept", "fitting"),
    [
        (False, None, False, {}, [], []),
        (True, None, False, {}, ["hip-python==10.0.*"], ["hip-python==10.0.*"]),
        (False, "6.4.1-90", False, {}, ["hip-python==6.4.*"], ["hip-python==6.4.*"]),
        (True, "6.4.1-90", False, {"hip-python": "6.4.4.1"}, [], []),
        (True, "7.2.0", False, {"hip-python": "6.4.4.1"}, [], ["hip-python==7.2.*"]),
        (False, "5.7.1-3", True, {}, [CUDA, NVRTC], [CUDA, NVRTC]),
        (False, None, True, {"cuda-bindings": "12.9.0"}, [NVRTC], [CUDA, NVRTC]),
        (False, None, True, {"cuda-bindings": "13.0", "nvidia-cuda-nvrtc": "14.1"}, [], []),
    ],
)
def test_what_the_machines_gpus_need(
    amd: bool,
    rocm: str | None,
    nvidia: bool,
    installed: dict[str, str],
    kept: list[str],
    fitting: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.delenv("ROCMFORGE_GPU_PACKAGES", raising=False)
    monkeypatch.setattr(packages, "find_rocm", lambda: Rocm(rocm, "/opt/rocm") if rocm else None)
    monkeypatch.setattr(packages, "has_amd_driver", lambda: amd)
    monkeypatch.setattr(packages, "has_nvidia_driver", lambda: nvidia)
    monkeypatch.setattr(metadata, "version", version)
    assert missing_packages(keep=True) == kept
    assert missing_packages() == fitting
    monkeypatch.setenv("ROCMFORGE_GPU_PACKAGES", "none")
    assert missing_packages() == []
    monkeypatch.setenv("ROCMFORGE_GPU_PACKAGES", " hip-python==7.1.*  ./my.whl ")
    assert missing_packages(keep=True) == ["hip-python==7.1.*", "./my.whl"]


PIP = """\
import os, sys
with open(os.environ["SAID"], "a") as file:
    print(*sys.argv[2:], file=file)
sys.exit(sys.argv[2] == os.environ.get("REFUSES"))
"""


class Environment:
    """A Python whose pip only writes down what it was told, and refuses one of its commands."""

    def __init__(self, folder: Path, script: Path) -> None:
        self.folder, self.script, self.said = folder, script, folder / "said"
        (folder / "pip").mkdir(parents=True)
        (folder / "pip" / "__init__.py").touch()  # a namespace would give way to the real pip
        (folder / "pip" / "__main__.py").write_text(PIP)

    def has(self, name: str, version: str) -> None:
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")

    def run(
        self, packages: str, *words: str, refuses: str = ""
    ) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        """Run the script; return how it ended and pip's commands."""
        self.said.write_text("")
        variables = {"ROCMFORGE_GPU_PACKAGES": packages, "REFUSES": refuses}
        places = {"PYTHONPATH": str(self.folder), "SAID": str(self.said)}
        done = subprocess.run(
            [sys.executable, "-S", self.script, *words],  # -S: without what is installed here
            env={**os.environ, **variables, **places},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        return done, self.said.read_text().splitlines()


@pytest.fixture
def environment(tmp_path: Path, repo: Path) -> Environment:
    return Environment(tmp_path / "site", repo / "tools" / "install_gpu_packages.py")


def test_the_script_needs_nothing_that_is_installed_and_no_pip_where_all_is_there(
    environment: Environment,
) -> None:
    environment.has("hip-python", "10.0.0.0.1.2")
    done, said = environment.run("hip-python==10.0.*")
    assert (done.returncode, done.stdout + done.stderr, said) == (0, "", [])
    done, said = environment.run("hip-python==7.2.*", "--list")
    assert (done.returncode, done.stdout, said) == (0, "hip-python==7.2.*\n", [])


def test_what_is_missing_is_installed(environment: Environment) -> None:
    done, said = environment.run("hip-python==10.0.* amdsmi")
    assert (done.returncode, done.stderr) == (0, "")
    assert said == [
        f"install --progress-bar off {name}" for name in ("hip-python==10.0.*", "amdsmi")
    ]


def test_what_pip_cannot_get_is_one_line_and_an_exit_code_of_its_own(
    environment: Environment, repo: Path
) -> None:
    done, _ = environment.run("hip-python==10.0.*", refuses="install")
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert line.startswith("rocmforge: pip could not install hip-python==10.0.* for this machine")
    assert "ROCMFORGE_GPU_PACKAGES" in line
    assert "return-code=0,3 " in (repo / "asv.conf.json").read_text()


def test_an_old_hip_python_goes_before_the_new_one_comes(environment: Environment) -> None:
    environment.has("hip-python", "10.0.0.0.1.2")
    environment.has("rocm-bindings-hip", "10.0.0.0.1.2")
    done, said = environment.run("hip-python==7.2.*")
    assert done.returncode == 0
    fetch, remove, install = said
    assert fetch.startswith("download --dest ")
    assert remove == "uninstall --yes hip-python rocm-bindings-hip"
    assert install.startswith("install --no-index --find-links ")
    done, said = environment.run("hip-python==7.2.*", refuses="download")
    assert (done.returncode, len(said)) == (3, 1)  # the old one stays where the new one is nowhere


def test_options_of_pip_are_no_packages(environment: Environment) -> None:
    done, said = environment.run("-r list.txt")
    assert (done.returncode, said) == (2, [])
    assert "ROCMFORGE_GPU_PACKAGES: got '-r list.txt', wanted packages" in done.stderr

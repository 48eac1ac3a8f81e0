"""`import evenflow` loads torch and numpy and nothing heavier; the library works without the packages of the lab."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "lightning_fabric",
    "typer",
    "rich",
    "matplotlib",
    "jinja2",
    "pooch",
    "scipy",
    "sklearn",
    "pandas",
    "torch._inductor",
)
LAB_PACKAGES = [name for name in HEAVY if "." not in name]


def run_python(code: str, *, blocked: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run code in a new process in which the import of the blocked packages fails."""
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked or []}))\n{code}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8")


def test_import_loads_nothing_heavy_that_torch_does_not():
    code = "import torch, numpy; before = set(sys.modules); import evenflow; print(*(set(sys.modules) - before))"
    output = run_python(code).stdout.split()
    assert "evenflow.systems" in output
    extra = {name.split(".")[0] for name in output} | set(output)
    assert not extra & set(HEAVY)
    assert not [name for name in output if name.startswith("evenflow.lab")]


def test_lazily_loaded_names():
    names = "evenflow.tasks.__name__, evenflow.probes.__name__, evenflow.sklearn.__name__, callable(evenflow.fit)"
    output = run_python(f"import evenflow; print({names})").stdout.split()
    assert output == ["evenflow.lab.tasks", "evenflow.probes", "evenflow.sklearn", "True"]


def test_the_library_works_without_the_packages_of_the_lab():
    code = """
import torch, evenflow
layer = evenflow.RNN(2, 4)
x = torch.randn(6, 3, 2)
print(evenflow.probes.memory_length(layer, x).steps, evenflow.probes.jacobian(layer, x, 5, 0).exact)
print(len(evenflow.probes.spectrum(layer)), evenflow.bounds.gradient_band(layer, 5).lag)
print(evenflow.penalties.make("stabilizer"), evenflow.optim.__name__)
"""
    result = run_python(code, blocked=LAB_PACKAGES)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[1:] == ["1 5", "stabilizer(50.0) evenflow.optim"]


def test_names_of_the_lab_say_what_to_install():
    code = """
import evenflow
for name in ("fit", "tasks", "doctor", "taskz"):
    try:
        getattr(evenflow, name)
    except (ImportError, AttributeError) as error:
        print(f"{type(error).__name__}: {error}")
"""
    *of_the_lab, unknown = run_python(code, blocked=["typer", "lightning_fabric"]).stdout.splitlines()
    assert of_the_lab == [
        f'ImportError: evenflow.{name} needs lightning_fabric, which is not installed: pip install "evenflow[lab]"'
        for name in ("fit", "tasks", "doctor")
    ]
    assert unknown == "AttributeError: module 'evenflow' has no attribute 'taskz'"


@pytest.mark.parametrize("missing", ["sklearn", "lightning_fabric"])
def test_the_estimators_say_what_to_install(missing):
    result = run_python("import evenflow.sklearn", blocked=[missing])
    *_, sentence = result.stderr.splitlines()
    assert sentence == (
        f'ImportError: evenflow.sklearn needs {missing}, which is not installed: pip install "evenflow[sklearn]"'
    )


def test_the_command_line_says_what_to_install():
    result = run_python("from evenflow.__main__ import main; main()", blocked=["typer"])
    assert result.returncode == 1
    assert result.stderr.strip().endswith('pip install "evenflow[lab]"')

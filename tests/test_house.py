"""The house: which module stands on which, and what may be imported where. MODULES is the table of contents."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

import vortex
from vortex.codegen import toolchain
from vortex.errors import ToolchainError
from vortex.launcher import GemmKernel

PACKAGE = Path(vortex.__file__).parent
CHECKOUT = PACKAGE.parent

MODULES = (
    "errors",  # every exception
    "dtypes",
    "cache",
    # the hardware: what a spec says, and a spec of this machine
    "figures",
    "instruction",
    "hardware",
    "gpu_hardware",
    "affinity",
    "machine",
    "probe_dots",
    "probe",
    "comparison",
    "cuda_driver",
    "cuda_graph",
    "gpu_probe",
    "specs",
    "targets",
    # from an operator to strategies and their cost
    "axes",
    "steps",
    "epilogue",
    "convolution",
    "winograd",
    "reduction",
    "operators",
    "rkernel",
    "blocks",
    "candidates",
    "sieve",
    "plans",
    "reduction_tiles",
    "rates",
    "assumptions",
    "effects",
    "arithmetic",
    "problem",
    "tasks",
    "loads",
    "stores",
    "families",
    "cost",
    "selector",
    "regions",
    "polymerize",
    "winograd_cost",
    "winograd_selector",
    "conv_cost",
    "conv_selector",
    "gpu_candidates",
    "gpu_sieve",
    "gpu_figures",
    "gpu_cost",
    "gpu_stages",
    "gpu_profiler",
    "gpu_selector",
    "gpu_polymerize",
    "gpu_variety",
    "gpu_reduction",
    "gpu_reduction_sieve",
    # the artifact
    "library",
    "gpu_library",
    # what calls are given, and the native doors of GPU libraries, which measuring also uses
    "native",
    "operands",
    "gpu_operands",
    "gpu_opened",
    "gpu_door",
    "gpu_reduction_door",
    "gpu_device",
    # strategies in, machine code out: CPU
    "codegen.toolchain",
    "codegen.cpu_tile",
    "codegen.cpu_round",
    "codegen.cpu_store",
    "codegen.cpu_finish",
    "codegen.cpu_load",
    "codegen.cpu_pack",
    "codegen.cpu_ahead",
    "codegen.cpu_depthwise",
    "codegen.cpu_block",
    "codegen.cpu_falling",
    "codegen.trees",
    "codegen.cpu_masks",
    "codegen.lower",
    "codegen.cpu_steps",
    "codegen.cpu_rows",
    "codegen.cpu_kernels",
    "codegen.cpu_conv",
    "codegen.cpu_call",
    "codegen.cpu_nest",
    "codegen.cpu_own",
    "codegen.cpu_fold",
    "codegen.cpu_dot",
    "codegen.cpu_streamed",
    "codegen.cpu_abreast",
    "codegen.cpu_words",
    "codegen.cpu_held",
    "codegen.cpu_amx",
    "codegen.cpu_weights",
    "codegen.cpu_weight_dots",
    "codegen.cpu_words_begin",
    "codegen.cpu_words_load",
    "codegen.cpu_words_nest",
    "codegen.cpu_word_dots",
    "codegen.object_cache",
    "codegen.emission",
    "codegen.cpu_words_objects",
    "codegen.link",
    "codegen.terms",
    "codegen.selector",
    "codegen.prices",
    "codegen.cpu_winograd",
    "codegen.cpu_objects",
    "codegen.cpu",
    "codegen.cpu_reduce",
    "codegen.conv",
    # GPU
    "codegen.gpu_selector",
    "codegen.gpu_link",
    "codegen.gpu_reduction_link",
    "codegen.cuda_passes",
    "codegen.cuda_ports",
    "codegen.cuda_pipeline",
    "codegen.cuda_lower",
    "codegen.cuda_program",
    "codegen.cuda_fragments",
    "codegen.cuda_prelude",
    "codegen.cuda_finish",
    "codegen.cuda_begin",
    "codegen.cuda_batch",
    "codegen.cuda_text",
    "codegen.cuda_groups",
    "codegen.cuda_window",
    "codegen.cuda_form",
    "codegen.cuda_core",
    "codegen.cuda_skinny",
    "codegen.cuda_reduce",
    "codegen.cuda_reduction",
    "codegen.tensor_core",
    "codegen.hopper_prelude",
    "codegen.hopper_tiles",
    "codegen.tensor_core_hopper",
    "codegen.nvrtc",
    "codegen.cuda",
    # the offline flow
    "device",
    "passes",
    "profiler",
    "rating",
    "analyzer",
    "specialise",
    "compiler",
    "reduction_compiler",
    "gpu_meter",
    "gpu_compiler",
    "gpu_reduction_compiler",
    # run time
    "threads",
    "shapes",
    "explain",
    "conv_explain",
    "gpu_explain",
    "reduction_plan",
    "reduction_explain",
    "gpu_reduction_explain",
    "planner",
    "launcher",
    "stored",
    "fused",
    "weighted",
    "batch_operands",
    "batch_launcher",
    "grouped_launcher",
    "reduction_launcher",
    "gpu_planner",
    "conv_operands",
    "conv_planner",
    "conv_launcher",
    "gpu_launcher",
    "gpu_fused",
    "gpu_batch",
    "gpu_grouped",
    "gpu_conv",
    "gpu_reduction_launcher",
    # what users hold
    "keys",
    "api",
    "torch.openmp",
    "torch.libraries",
    "torch.program",
    "torch.layers",
    "torch.bindings",
    "torch.convolutions",
    "torch.pools",
    "torch.operators",
    "torch.patterns",
    "torch.replaced",
    "torch.merge",
    "torch.served",
    "torch.between",
    "torch.graph",
    "torch.extents",
    "torch.dynamo",
    "torch.swap",
    "demo",
    "progress",
    "cli_shapes",
    "cli",
    "__main__",
)
OWNERS = {  # what only these may import
    "tvm": {"device", *(name for name in MODULES if name.startswith("codegen."))},
    "tvm_ffi": {"native", "library", *(name for name in MODULES if name.startswith("codegen."))},
    "pydantic": {"figures", "instruction", "hardware", "gpu_hardware", "specs"},
    "torch": {name for name in MODULES if name.startswith("torch.")},
    "typer": {"cli", "cli_shapes"},
    "rich": {"cli", "demo", "progress"},
    "matplotlib": {"demo"},
}
MOST_LINES = 330  # about 300: a module that outgrows this has two reasons to change


CACHED = """
import sys, numpy, vortex
gemm = vortex.compile("gemm", hw="native")
assert (gemm(numpy.ones((5, 7), numpy.float32), numpy.ones((7, 3), numpy.float32)) == 7).all()
heavy = {"tvm", "pydantic", "filelock", "vortex.cost", "vortex.regions", "vortex.hardware"} & set(sys.modules)
assert not heavy, heavy
assert gemm.predict(5, 3, 7) > 0
"""
ALONE = """
import sys, threading
from pathlib import Path
folder = Path(sys.argv[1])
for name in ("torch", "cuda"):
    (folder / f"{name}.py").write_text("")
sys.path.insert(0, str(folder))
from vortex.codegen.toolchain import enter_tvm
from vortex.native import on_its_own
with on_its_own():
    other = threading.Thread(target=lambda: __import__("cuda"))
    other.start()
    other.join()
assert "cuda" in sys.modules, "hidden from other threads too"
enter_tvm()
assert "tvm" in sys.modules and "torch" not in sys.modules
import torch
from vortex.codegen.cpu_load import copy_kernel
assert copy_kernel(8).params
"""
LIGHT = """
import sys
from importlib.util import find_spec
sys.path.append(sys.argv[1])
import numpy, vortex
gemm = vortex.load(sys.argv[2])
a, b = numpy.ones((5, 7), numpy.float32), numpy.ones((7, 3), numpy.float32)
assert (gemm(a, b) == 7).all() and (gemm(a, gemm.pack(b)) == 7).all()
assert gemm.predict(5, 3, 7) > 0 and "plan" in str(gemm.explain(5, 3, 7))
gemm.save(sys.argv[2] + "2")
there = [name for name in sys.argv[3:] if find_spec(name) is not None]
assert not there, there
"""


def runtime_environment(folder: Path) -> None:
    """What calling needs, by links in `folder`: NumPy, tvm-ffi, what these require themselves, and this package."""
    (folder / PACKAGE.name).symlink_to(PACKAGE)
    wanted, seen = ["numpy", "apache-tvm-ffi"], set()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            (folder / top).symlink_to(found.locate_file(top))
        wanted += [re.split(r"[^\w.-]", need)[0] for need in found.requires or () if "extra ==" not in need]


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name, without `__init__`, which may import anything lazily."""
    paths = (path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
    return {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in paths}


def imported(path: Path) -> Iterator[str]:
    """Dotted names that a module imports anywhere, in functions and for types alone too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own(name: str) -> str | None:
    """The module of this package that a dotted name leads to."""
    parts = name.split(".")[1:]
    return next((".".join(parts[:end]) for end in (2, 1) if ".".join(parts[:end]) in MODULES), None)


class TestOrder:
    def test_the_table_of_contents_is_complete(self):
        assert set(MODULES) == set(modules())

    @pytest.mark.parametrize("module", MODULES)
    def test_a_module_imports_only_modules_above_it(self, module: str):
        above = MODULES[: MODULES.index(module)]
        for name in imported(modules()[module]):
            if name.startswith("vortex.") and own(name) is not None:
                assert own(name) in above, f"{module} imports {own(name)}, which is not above it"

    @pytest.mark.parametrize("package", OWNERS)
    def test_heavy_packages_have_owners(self, package: str):
        users = {name for name, path in modules().items() for used in imported(path) if used.split(".")[0] == package}
        assert users <= OWNERS[package]

    def test_no_module_is_called_after_nothing(self):
        assert not {"utils", "util", "base", "common", "helpers", "misc"} & {name.split(".")[-1] for name in modules()}

    @pytest.mark.parametrize("module", MODULES)
    def test_modules_are_short(self, module: str):
        assert len(modules()[module].read_text().splitlines()) <= MOST_LINES


class TestImports:
    def test_importing_vortex_is_free(self):
        heavy = "{'tvm', 'tvm_ffi', 'torch', 'pydantic', 'numpy', 'typer', 'rich', 'filelock', 'platformdirs'}"
        program = f"import sys, vortex; dir(vortex); assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)"
        subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

    def test_every_public_name_resolves(self):
        assert all(getattr(vortex, name) is not None for name in vortex.__all__)
        with pytest.raises(AttributeError, match="frobnicate"):
            vortex.frobnicate  # noqa: B018

    def test_a_library_from_the_cache_opens_without_compiler_lock_or_mirror(self, gemm: GemmKernel):
        subprocess.run([sys.executable, "-c", CACHED], check=True, timeout=60)

    def test_calling_needs_numpy_and_tvm_ffi_only(self, library_path: Path, tmp_path: Path):
        """In an environment that has nothing else: no site-packages, no variables, not this folder."""
        copy = shutil.copy(library_path, tmp_path / "gemm.vortex")
        environment = tmp_path / "environment"
        environment.mkdir()
        runtime_environment(environment)
        absent = sorted(OWNERS.keys() - {"tvm_ffi"} | {"filelock", "platformdirs", "psutil", "pytest"})
        command = [sys.executable, "-I", "-S", "-c", LIGHT, str(environment), str(copy), *absent]
        subprocess.run(command, check=True, timeout=60)
        installed = {name.partition(".")[0] for name in os.listdir(environment)}
        assert {"numpy", "tvm_ffi", "vortex"} <= installed and not installed & set(absent)

    def test_tvm_is_entered_without_torch(self, tmp_path: Path):
        """Which it would import where it is installed; the code that is parsed then has macros in it."""
        subprocess.run([sys.executable, "-c", ALONE, str(tmp_path)], check=True, timeout=60)

    def test_eval_is_not_imported(self):
        assert not {name for path in modules().values() for name in imported(path) if name.split(".")[0] == "eval"}


class TestPackaging:
    @pytest.fixture
    def project(self) -> dict:
        if not (CHECKOUT / "pyproject.toml").is_file():
            pytest.skip("not a checkout")
        return tomllib.loads((CHECKOUT / "pyproject.toml").read_text())

    def test_one_version(self, project: dict):
        assert project["project"]["version"] == vortex.__version__

    def test_the_pinned_pair_is_the_checked_pair(self, project: dict):
        pins = dict(
            requirement.split("==")
            for requirements in (
                project["project"]["dependencies"],
                project["project"]["optional-dependencies"]["compile"],
            )
            for requirement in requirements
            if "==" in requirement
        )
        assert pins == toolchain.PINNED

    def test_every_file_of_the_package_is_shipped(self, project: dict):
        setup = project["tool"]["setuptools"]
        shipped = {path for name in setup["packages"] for path in self.folder(setup, name).glob("*.py")}
        for name, patterns in setup["package-data"].items():
            shipped |= {path for pattern in patterns for path in self.folder(setup, name).glob(pattern)}
        files = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
        assert files <= shipped

    @staticmethod
    def folder(setup: dict, package: str) -> Path:
        mapped = setup["package-dir"].get(package)
        return CHECKOUT / (mapped or package.replace(".", "/"))


class TestToolchain:
    @pytest.mark.parametrize(
        ("tvm", "ffi"),
        [
            ("0.27.0.post1", "0.1.15.post2"),
            ("0.26.0", "0.1.14.post1"),
            (None, "0.1.14.post1"),
            (None, None),
        ],
    )
    def test_any_other_pair_is_refused(self, monkeypatch: pytest.MonkeyPatch, tvm: str | None, ffi: str | None):
        installed = {"apache-tvm": tvm, "apache-tvm-ffi": ffi}

        def version(name: str) -> str:
            if installed[name] is None:
                raise PackageNotFoundError(name)
            return installed[name]

        monkeypatch.setattr(toolchain, "version", version)
        with pytest.raises(ToolchainError) as refusal:
            toolchain.check_versions()
        told = str(refusal.value)
        assert all(f"{name}=={release}" in told for name, release in toolchain.PINNED.items())
        assert all(f"{name} {release or 'not installed'}" in told for name, release in installed.items())

    def test_the_pair_here_is_right(self):
        assert toolchain.check_versions() == toolchain.PINNED

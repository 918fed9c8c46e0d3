# SPDX-License-Identifier: MIT
"""This file damages small model files and inspects them: each must end in an answer or in a sentence of this package.

Usage: python tests/models/fuzz.py [--only FORMAT ...] [--from SEED] [--count N], which prints a line a format and exits
with 1 if a file crashed, hung, took too much memory, or raised anything but a LayerNormError. Such files are kept in
build/fuzz. A file depends on its format and number alone, so `--from` goes on where a run was stopped.
"""

import argparse
import faulthandler
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import fuzz_cases

KEPT = Path(__file__).parents[2] / "build" / "fuzz"
# Of the processor, for where others use it too a second of the clock says little; and one by the clock for what sleeps.
MEMORY, SECONDS, CLOCK = 2**30, 5, 100


def look(path):
    """Do what `layernorm inspect` does, without the net that catches exhausted memory and stacks."""
    from layernorm.models.formats import read_model
    from layernorm.models.identify import identify
    from layernorm.report.inspection import Inspection

    model = read_model(path)
    seen = Inspection(model, identify(model))
    json.dumps(seen.document(values=True), allow_nan=False)
    seen.text().encode()


def work(kind, seeds, first, last):
    """Inspect some files and say after each how it ended; a file that ends this process is the one not spoken of."""
    from layernorm.models.formats import hdf5
    from layernorm.spec.errors import LayerNormError

    hdf5.subprocess = SimpleNamespace(run=forked, TimeoutExpired=subprocess.TimeoutExpired)
    hdf5.SECONDS = SECONDS - 2
    cases = fuzz_cases.loaded(seeds)
    faulthandler.register(signal.SIGPROF, chain=True)  # says where, and then the process ends
    os.environ["COLUMNS"] = "80"
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.RLIM_INFINITY))
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, last):
            path = fuzz_cases.written(fuzz_cases.case(kind, seed, cases), Path(folder) / str(seed))
            faulthandler.dump_traceback_later(CLOCK, exit=True)
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                look(path)
                outcome = "read"
            except LayerNormError as error:
                outcome = "refused" if str(error) else "refused without a word"
            finally:
                faulthandler.cancel_dump_traceback_later()
                signal.setitimer(signal.ITIMER_PROF, 0)
            print(seed, outcome, flush=True)


def forked(_, *, input, timeout, **__):
    """Stand for subprocess.run of the HDF5 child: a fork that has h5py already, 8 ms instead of 200."""
    import h5py  # noqa: F401 - loaded once, here

    from layernorm.models.formats import hdf5_child

    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as request:
        request.write(input)
        request.seek(0)
        child = os.fork()
        if not child:
            try:
                signal.alarm(timeout)
                os.dup2(request.fileno(), 0)
                os.dup2(out.fileno(), 1)
                sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115 - they live as long as the child
                hdf5_child.main()
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
            raise subprocess.TimeoutExpired("hdf5_child.py", timeout)
        out.seek(0)
        return SimpleNamespace(stdout=out.read(), returncode=status)


def run(kind, first, count, code="import fuzz; fuzz.work(*{!r})"):
    """Inspect `count` files of a kind in processes of their own; give how many ended how, and what failed, by seed."""
    ends, failed = Counter(), {}
    with tempfile.TemporaryDirectory() as seeds:
        fuzz_cases.make_seeds(kind, Path(seeds))
        here, at = str(Path(__file__).parent), first
        paths = os.pathsep.join([here, str(Path(__file__).parents[2] / "src"), os.environ.get("PYTHONPATH", "")])
        while at < first + count:
            task = (kind, seeds, at, first + count)
            done = subprocess.run(
                [sys.executable, "-c", code.format(task)], capture_output=True, text=True, check=False,
                env=os.environ | {"PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
            ends.update(outcome for _, outcome in lines)
            at += len(lines)
            if at < first + count:
                failed[at] = done.stderr.strip() or f"ended with status {done.returncode}"
                fuzz_cases.written(fuzz_cases.case(kind, at, fuzz_cases.loaded(seeds)), KEPT / f"{kind}-{at}")
                at += 1
    return ends, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=fuzz_cases.SEEDS, default=list(fuzz_cases.SEEDS), metavar="FORMAT")
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="SEED")
    parser.add_argument("--count", type=int, default=10_000, metavar="N")
    asked = parser.parse_args()
    bad = 0
    for kind in asked.only:
        start = time.perf_counter()
        ends, failed = run(kind, asked.first, asked.count)
        for seed, why in failed.items():
            print(f"{kind} {seed}: kept in {KEPT / f'{kind}-{seed}'}\n{why}")
        bad += len(failed) + ends["refused without a word"]
        print(
            f"{kind}: {asked.count} files from {asked.first}, {ends['read']} read, {ends['refused']} refused, "
            f"{len(failed)} failed, {time.perf_counter() - start:.0f} s", flush=True,
        )  # fmt: skip
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: MIT
"""This file checks that no command waits for a pipe, reads a device without end, or puts a file in the place of one."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from layernorm.cli import run

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes on this system")

READ = [
    ["inspect", "pipe"],
    ["compare", "pipe", "a.npy"],
    ["compare", "none.onnx", "none.onnx", "--inputs", "pipe"],
    ["compare", "none.onnx", "none.onnx", "--map", "pipe"],
    ["infer", "pipe", "a.npy"],
    ["infer", "a.npy", "pipe"],
    ["infer", "a.npy", "a.npy", "--gamma", "pipe"],
    ["explore", "pipe", "--check", "--no-browser"],
]
WRITTEN = [["explore", "--html", "pipe"], ["inspect", "none.onnx", "--card", "pipe"]]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    np.save("a.npy", np.ones((4, 8), np.float32))

    def waited(*_):
        raise TimeoutError("it waits for the pipe")

    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(30)
    yield tmp_path
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("words", READ, ids=" ".join)
def test_a_pipe_is_not_read(words, folder, capsys):
    assert run(words) == 2
    assert "pipe: it is a device" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("words", WRITTEN, ids=" ".join)
def test_no_file_takes_the_place_of_a_pipe(words, folder, capsys):
    assert run(words) == 2
    assert capsys.readouterr().err == "layernorm: pipe is a device or a pipe; give the name of a file.\n"
    assert Path("pipe").is_fifo()
    assert sorted(p.name for p in folder.iterdir()) == ["a.npy", "pipe"]

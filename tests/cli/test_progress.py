# SPDX-License-Identifier: MIT
"""This file looks that a command which takes a while says so on a terminal, and can be stopped there."""

import json
import os
import pty
import signal
import subprocess
import sys

import numpy as np
import pytest
from onnx import helper
from onnx_files import constants, model, save

WIDTH = 768


@pytest.fixture
def files(tmp_path):
    """Write a model and a dump that take some tenths of a second."""
    w = np.linspace(0.5, 1.5, 4, dtype=np.float32)
    chain = [
        helper.make_node("LayerNormalization", [f"x{k}" if k else "x", "w"], [f"x{k + 1}"], f"n{k}", axis=-1)
        for k in range(50)
    ]
    save(tmp_path, model(chain, constants(w=w)), "a.onnx")
    random = np.random.default_rng(0)
    x = random.normal(3, 2, (64, WIDTH)).astype(np.float32)
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y * random.normal(1, 0.1, WIDTH).astype(np.float32))
    return tmp_path


COMMANDS = {
    "inspect": (["a.onnx"], b"reading a.onnx"),
    "compare": (["a.onnx", "a.onnx"], b"comparing a.onnx and a.onnx"),
    "infer": (["x.npy", "y.npy"], b"looking for a norm that turns x.npy into y.npy"),
    "conform": (["numpy", "--quick", "--only", "exact"], b"grading"),
}


def started(files, command, stderr):
    return subprocess.Popen(
        [sys.executable, "-m", "layernorm", command, *COMMANDS[command][0], "--json"], cwd=files,
        stdout=subprocess.PIPE, stderr=stderr, env=os.environ | {"TERM": "xterm", "COLUMNS": "200"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    )  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_progress_goes_to_a_terminal_and_to_nothing_else(files, command):
    reader, writer = pty.openpty()
    with started(files, command, writer) as running:
        os.close(writer)
        out, _ = running.communicate(timeout=60)
    said = os.read(reader, 100_000)
    os.close(reader)
    assert COMMANDS[command][1] in said
    assert json.loads(out)["schema"].startswith(f"layernorm.{command}/")
    with started(files, command, subprocess.PIPE) as running:
        assert running.communicate(timeout=60)[1] == b""


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_while_it_works_is_a_sentence_and_a_document(files, command):
    reader, writer = pty.openpty()
    with started(files, command, writer) as running:
        os.close(writer)
        try:
            said = b""
            while COMMANDS[command][1] not in said:
                said += os.read(reader, 1000)
            running.send_signal(signal.SIGINT)
            out, _ = running.communicate(timeout=30)
        finally:
            running.kill()
            os.close(reader)
    assert running.returncode == 2
    assert json.loads(out)["error"]["code"] == "interrupted"

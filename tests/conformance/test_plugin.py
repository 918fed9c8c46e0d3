# SPDX-License-Identifier: MIT
"""This file runs pytest inside pytest: what an author of a kernel sees of the plugin."""

import subprocess
import sys
from importlib.metadata import entry_points

import numpy as np
import pytest

from layernorm.conformance.conform import report
from layernorm.conformance.grade import cases_of, refusal_of
from layernorm.conformance.known import of_function
from layernorm.conformance.properties import PROPERTIES

pytest_plugins = ("pytester",)

# An installation older than the entry point does not bring the plugin, and pytest does not take it twice.
BRINGS = [] if entry_points(group="pytest11", name="layernorm") else ["-p", "layernorm.conformance.plugin"]

KERNELS = """
import numpy as np
import pytest

def exact(x, gamma=None, beta=None):
    import layernorm
    return layernorm.layer_norm(x, gamma, beta)

def one_pass(x, gamma=None, beta=None):
    mean = x.mean(-1, keepdims=True)
    y = (x - mean) / np.sqrt((x * x).mean(-1, keepdims=True) - mean * mean + np.float32(1e-5))
    y = y if gamma is None else y * gamma
    return y if beta is None else y + beta
"""

namespace = {}
exec(KERNELS, namespace)
one_pass = namespace["one_pass"]


@pytest.fixture
def tests(pytester):
    def run(text, *options):
        pytester.makepyfile(KERNELS + text)
        # a process of its own: pytester forgets the modules that a test loads, and Numba cannot be loaded twice
        return pytester.runpytest_subprocess(*BRINGS, "-p", "no:cacheprovider", "--strict-markers", "-rs", *options)

    return run


def test_every_case_is_a_test_with_its_name(tests):
    target = of_function(np.add, "layer")
    shown = [p for p in PROPERTIES if refusal_of(p, target) is None]
    cases = [(p, str(case)) for p in shown for case in cases_of(p, target, True)]
    assert len(PROPERTIES) - len(shown) == 5  # in place, rounding, gradients
    assert len(cases) > 150

    done = tests(
        "@pytest.mark.conform(exact, spec='layer')\ndef test_mine(conforms):\n    conforms()\n", "-v"
    )  # fmt: skip
    done.assert_outcomes(passed=len(cases), skipped=5)
    text = done.stdout.str()
    assert all(f"::test_mine[{p}: {case}] PASSED" in text for p, case in cases)
    done.stdout.fnmatch_lines_random(["SKIPPED*it gives no gradients*", "*::test_mine[[]in-place[]] SKIPPED*"])


def test_a_failure_says_by_how_much_and_where(tests):
    done = tests(
        "@pytest.mark.conform(one_pass, only=('exact', 'offset'), name='one pass')\n"
        "def test_mine(conforms):\n    conforms()\n"
    )
    worst = report(of_function(one_pass, "layer"), quick=True, only=["offset"]).grades[0]
    assert done.parseoutcomes()["failed"] >= 1
    done.stdout.fnmatch_lines_random(["one pass: offset fails: * times the allowed error; * ulp*", f"at {worst.at}"])
    assert "exact fails" not in done.stdout.str()
    assert "Traceback" not in done.stdout.str()


def test_a_target_may_be_named_or_made(tests):
    done = tests(
        "from layernorm.conformance.known import known\n"
        "@pytest.mark.conform('layernorm', only='exact')\ndef test_named(conforms):\n    conforms()\n"
        "@pytest.mark.conform(known('layernorm', 'rms'), only='exact')\n"
        "def test_made(conforms):\n    conforms()\n"
        "@pytest.mark.conform('numppy', only='exact')\ndef test_no_such(conforms):\n    conforms()\n"
    )
    assert done.parseoutcomes().keys() == {"passed", "failed"}
    assert done.parseoutcomes()["failed"] == 1
    done.stdout.fnmatch_lines(["*numppy: neither a known target*did you mean numpy*"])


def test_what_is_not_installed_is_skipped(tests):
    done = tests(
        "import sys\nsys.modules['openvino'] = None\n@pytest.mark.conform('openvino', only='exact')\n"
        "def test_openvino(conforms):\n    conforms()\n"
    )
    done.assert_outcomes(skipped=1)
    done.stdout.fnmatch_lines(["SKIPPED*openvino is not installed; pip install openvino."])


def test_other_arguments_and_other_tests_are_left_alone(tests):
    done = tests(
        "@pytest.mark.parametrize('n', [1, 2])\n@pytest.mark.conform(exact, only='exact')\n"
        "def test_both(n, conforms):\n    conforms()\n"
        "def test_other():\n    pass\n"
    )
    cases = len(list(cases_of("exact", of_function(one_pass, "layer"), True)))
    done.assert_outcomes(passed=2 * cases + 1)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def test_mine(conforms):\n    conforms()\n", "*test_mine uses `conforms`; mark it with*"),
        ("@pytest.mark.conform(exact, quik=True)\ndef test_mine(conforms): ...\n", "*conform has no option quik*"),
        (
            2 * "@pytest.mark.conform(exact, spec='layer')\n" + "def test_mine(conforms): ...\n",
            "*test_mine has 2 markers conform; write a test for each.*",
        ),
        (
            "@pytest.mark.conform(exact, spec='layer')\ndef test_mine(): ...\n",
            "*test_mine is marked conform; let it use*",
        ),
    ],
)
def test_a_wrong_marker_is_said_at_collection(text, sentence, tests):
    tests(text).stdout.fnmatch_lines([sentence])


def test_the_plugin_costs_a_pytest_that_does_not_use_it_no_framework():
    code = "import layernorm.conformance.plugin, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"numba", "ml_dtypes", "torch", "jax", "onnx", "typer", "rich"}.isdisjoint(loaded)


def test_a_test_that_grades_nothing_fails(tests):
    done = tests(
        "@pytest.mark.conform(exact, only='axes')\ndef test_forgets(conforms): ...\n"
        "@pytest.mark.conform(exact, only='axes')\ndef test_fails_first(conforms):\n    assert 0\n"
        "@pytest.mark.conform(exact, only='axes')\ndef test_leaves_out(conforms):\n    pytest.skip()\n"
    )
    cases = len(list(cases_of("axes", of_function(one_pass, "layer"), True)))
    done.assert_outcomes(failed=2 * cases, skipped=cases)
    assert done.stdout.str().count("the test never called conforms(), so nothing was graded; call it.") >= cases


def test_a_marker_of_a_class_may_be_overridden(tests):
    done = tests(
        "@pytest.mark.conform(one_pass, only='offset')\nclass TestMine:\n"
        "    @pytest.mark.conform(exact, only='axes')\n    def test_other(self, conforms):\n        conforms()\n"
        "    def test_plain(self): ...\n"
    )
    done.assert_outcomes(passed=1 + len(list(cases_of("axes", of_function(one_pass, "layer"), True))))


WRONG = {
    "options of a named target": ("'numpy', dtypes=('float64',)", "dtypes is for functions, and numpy says it itself*"),
    "options of a made one": ("known('numpy'), spec='rms'", "spec is for functions, and numpy says it itself*"),
    "no types": ("exact, dtypes=3", "dtypes=3 is not a tuple of*"),
    "no properties": ("exact, only=[]", "only names no property, so nothing would be graded; leave it out for all."),
}  # fmt: skip


def test_options_that_would_do_nothing_fail_the_test(tests):
    text = "".join(
        f"@pytest.mark.conform({said})\ndef test_{i}(conforms):\n    conforms()\n"
        for i, (said, _) in enumerate(WRONG.values())
    )
    done = tests(f"from layernorm.conformance.known import known\n{text}")
    done.assert_outcomes(failed=len(WRONG))
    done.stdout.fnmatch_lines_random([sentence for _, sentence in WRONG.values()])

# SPDX-License-Identifier: MIT
"""This file is the pytest plugin: one test of a kernel becomes a test a property, each by its own name.

pytest finds it wherever layernorm is installed. The author of a kernel writes

    import pytest
    from my_kernels import fast_layer_norm  # fast_layer_norm(x, gamma, beta) on NumPy arrays

    @pytest.mark.conform(fast_layer_norm, spec="layer")
    def test_fast_layer_norm(conforms):
        conforms()

and pytest runs `test_fast_layer_norm[offset]`, `test_fast_layer_norm[constant]` and so on. A property that fails says
by how much and on which input; one that the kernel cannot show is skipped with the reason. The marker takes what
`layernorm.conform` takes (`backward=`, `dtypes=`, `only=`), and `quick=False` for all cases. Instead of a function it
takes the name of a target, as the command line does: `@pytest.mark.conform("torch")`.
"""

from collections.abc import Callable
from typing import Any

import pytest

# The options of the marker that make the target; the others say how it is graded.
MAKES = ("spec", "backward", "dtypes", "name")
GRADES = ("quick", "only")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers", "conform(target, spec='layer', quick=True, only=None, backward=None, dtypes=('float32',)): "
        "run the test once for every property of layernorm conform, with the fixture `conforms`.",
    )  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test that uses the fixture one run a property."""
    if "conforms" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("conform")
    if marker is None or len(marker.args) != 1:
        raise pytest.UsageError(
            f"{metafunc.definition.nodeid} uses `conforms`; mark it with @pytest.mark.conform(target, spec=…)."
        )
    unheard = sorted(marker.kwargs.keys() - {*MAKES, *GRADES})
    if unheard:
        raise pytest.UsageError(f"conform has no option {', '.join(unheard)}; it has {', '.join((*MAKES, *GRADES))}.")
    from layernorm.conformance.properties import PROPERTIES

    only = marker.kwargs.get("only")
    wanted = PROPERTIES if only is None else (only,) if isinstance(only, str) else tuple(only)
    metafunc.parametrize("_conform_property", wanted, ids=wanted, indirect=True)


@pytest.fixture
def _conform_property(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def conforms(request: pytest.FixtureRequest, _conform_property: str) -> Callable[[], None]:
    """Give the function that grades the marked target on this test's property, and fails or skips the test."""
    marker = request.node.get_closest_marker("conform")

    def check() -> None:
        __tracebackhide__ = True
        from layernorm.conformance.conform import report
        from layernorm.spec.errors import LayerNormError, MissingExtraError

        refusal = None
        try:
            target = _target(marker.args[0], {k: v for k, v in marker.kwargs.items() if k in MAKES})
            (grade,) = report(target, quick=marker.kwargs.get("quick", True), only=[_conform_property]).grades
        except LayerNormError as fault:
            refusal = fault
        if isinstance(refusal, MissingExtraError):
            pytest.skip(str(refusal))
        if refusal is not None:
            pytest.fail(str(refusal), pytrace=False)
        if grade.verdict == "not-applicable":
            pytest.skip(grade.why or "not applicable")
        if grade.verdict != "holds":
            said = [f"{grade.worst:.3g} times the allowed error"] if grade.worst is not None else []
            said += [f"{grade.ulp:.3g} ulp"] if grade.ulp is not None else []
            said += [grade.why] if grade.why else []
            pytest.fail(
                f"{target.name}: {grade.property} {grade.verdict}: {'; '.join(said)}\n"
                f"at {grade.at}\nlayernorm explain {grade.property} says what it means.",
                pytrace=False,
            )

    return check


def _target(given: Any, said: dict[str, Any]) -> Any:
    from layernorm.conformance.known import of_function, resolve
    from layernorm.conformance.targets import Target

    if isinstance(given, Target):
        return given
    if isinstance(given, str):
        return resolve(given, variant=said.get("spec"))
    return of_function(given, said.pop("spec", "layer"), **said)

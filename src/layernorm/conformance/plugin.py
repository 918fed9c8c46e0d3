# SPDX-License-Identifier: MIT
"""This file is the pytest plugin: one test of a kernel becomes a test of every case, each by its own name.

pytest finds it wherever layernorm is installed. The author of a kernel writes

    import pytest
    from my_kernels import fast_layer_norm  # fast_layer_norm(x, gamma, beta) on NumPy arrays

    @pytest.mark.conform(fast_layer_norm, spec="layer")
    def test_fast_layer_norm(conforms):
        conforms()

and pytest runs `test_fast_layer_norm[offset: normal d=100 rows=4 float32 offset=10000 …]` and some 200 more; those of a
property with `-k offset:`. A case that fails says by how much; a property that the kernel cannot show is one test,
skipped with the reason. The marker takes what `layernorm.conform` takes (`backward=`, `dtypes=`, `only=`), and
`quick=False` for all cases, some 800 a type. Instead of a function it takes the name of a target, as the command line
does: `@pytest.mark.conform("torch")`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from layernorm.conformance.grade import Grade

# The options of the marker that make the target; the others say how it is graded.
MAKES = ("spec", "backward", "dtypes", "name")
GRADES = ("quick", "only")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers", "conform(target, spec='layer', quick=True, only=None, backward=None, dtypes=('float32',)): "
        "run the test once for every case of layernorm conform, with the fixture `conforms`.",
    )  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test that uses the fixture one run a case."""
    marker, on_itself = metafunc.definition.get_closest_marker("conform"), _own_markers(metafunc.definition)
    if "conforms" not in metafunc.fixturenames:
        if on_itself:
            raise pytest.UsageError(
                f"{metafunc.definition.nodeid} is marked conform; let it use `conforms`, and call it."
            )
        return
    if len(on_itself) > 1:
        raise pytest.UsageError(
            f"{metafunc.definition.nodeid} has {len(on_itself)} markers conform; write a test for each."
        )  # fmt: skip
    if marker is None or len(marker.args) != 1:
        raise pytest.UsageError(
            f"{metafunc.definition.nodeid} uses `conforms`; mark it with @pytest.mark.conform(target, spec='layer'), "
            "one target and the rest by name."
        )
    unheard = sorted(marker.kwargs.keys() - {*MAKES, *GRADES})
    if unheard:
        raise pytest.UsageError(f"conform has no option {', '.join(unheard)}; it has {', '.join((*MAKES, *GRADES))}.")
    runs = _runs(marker.args[0], marker.kwargs)
    metafunc.parametrize("_conform_run", [run for _, run in runs], ids=[name for name, _ in runs], indirect=True)


@pytest.fixture
def _conform_run(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def conforms(_conform_run: Any) -> Callable[[], None]:
    """Give the function that grades the marked target on this test's case, and fails or skips the test."""
    return _Conforms(_conform_run)


@pytest.hookimpl(trylast=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Fail a test that came to its end without having graded anything; pytest has run it by now."""
    fixture = getattr(item, "funcargs", {}).get("conforms")
    if isinstance(fixture, _Conforms) and not fixture.called:
        pytest.fail("the test never called conforms(), so nothing was graded; call it.", pytrace=False)


class _Conforms:
    """A run, and whether the test made it."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run, self.called = run, False

    def __call__(self) -> None:
        __tracebackhide__ = True
        self.called = True
        self._run()


def _own_markers(item: Any) -> list[pytest.Mark]:
    """List what stands on the test function itself; what its class or module says, it may override."""
    return [marker for node, marker in item.iter_markers_with_node("conform") if node is item]


def _runs(given: Any, said: Mapping[str, Any]) -> list[tuple[str, Callable[[], None]]]:
    """List what there is to run, by name; a target that cannot be made is one run, which says why."""
    from layernorm.conformance.conform import known_properties
    from layernorm.conformance.grade import cases_of, grade_case, refusal_of
    from layernorm.conformance.properties import PROPERTIES
    from layernorm.spec.errors import LayerNormError, MissingExtraError

    try:
        target = _target(given, {k: v for k, v in said.items() if k in MAKES})
        wanted = known_properties(said.get("only")) or PROPERTIES
    except MissingExtraError as fault:
        return [("not installed", partial(pytest.skip, str(fault)))]
    except LayerNormError as fault:
        return [("wrong", partial(pytest.fail, str(fault), pytrace=False))]
    runs: list[tuple[str, Callable[[], None]]] = []
    for name in wanted:
        if (refusal := refusal_of(name, target)) is not None:
            runs.append((name, partial(pytest.skip, str(refusal.why))))
            continue
        runs += [
            (f"{name}: {case}", partial(_check, target.name, partial(grade_case, name, target, case)))
            for case in cases_of(name, target, said.get("quick", True))
        ]
    return runs


def _check(target: str, grade: Callable[[], "Grade"]) -> None:
    __tracebackhide__ = True
    found = grade()
    if found.verdict == "holds":
        return
    said = [f"{found.worst:.3g} times the allowed error"] if found.worst is not None else []
    said += [f"{found.ulp:.3g} ulp"] if found.ulp is not None else []
    said += [found.why] if found.why else []
    pytest.fail(
        f"{target}: {found.property} {found.verdict}: {'; '.join(said)}\n"
        f"at {found.at}\nlayernorm explain {found.property} says what it means.",
        pytrace=False,
    )


def _target(given: Any, said: dict[str, Any]) -> Any:
    from layernorm.conformance.known import of_function, resolve
    from layernorm.conformance.targets import Target
    from layernorm.spec.errors import ArgumentError

    of_functions = [o for o in said if o != "spec" or isinstance(given, Target)]
    if isinstance(given, (Target, str)) and of_functions:
        shown = given if isinstance(given, str) else given.name
        raise ArgumentError(f"{', '.join(of_functions)} is for functions, and {shown} says it itself; leave it out.")
    if isinstance(given, Target):
        return given
    if isinstance(given, str):
        return resolve(given, variant=said.get("spec"))
    return of_function(given, said.pop("spec", "layer"), **said)

# SPDX-License-Identifier: MIT
"""This file taps the norms of live PyTorch modules and checks that they are left as they were."""

import copy
import warnings

import ml_dtypes
import numpy as np
import pytest
import torch

import layernorm as ln
from layernorm.models.formats import read_model
from layernorm.runtimes import can_run, run, seeded_inputs, taps_of
from layernorm.spec.errors import UnsupportedError

nn = torch.nn


def nested():
    """Norms of four kinds, some deep inside."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), nn.Sequential(nn.GroupNorm(4, 8), nn.SiLU())),
        nn.Flatten(2),
        nn.Sequential(nn.Linear(16, 12), nn.LayerNorm(12), nn.Linear(12, 12), nn.RMSNorm(12, eps=1e-6)),
    ).eval()


def state(module):
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs")
    hooks = [len(getattr(m, kind)) for m in module.modules() for kind in kinds]
    tensors = [t.clone() for t in (*module.parameters(), *module.buffers())]
    return hooks, [m.training for m in module.modules()], [p.grad for p in module.parameters()], tensors


def alike(a, b):
    return a[:3] == b[:3] and all(torch.equal(x, y) for x, y in zip(a[3], b[3], strict=True))


def looked_into(module):
    seen = ln.inspect(module)
    return seen.model, seen.norms


def test_norms_of_every_kind_are_tapped():
    module = nested()
    read, norms = looked_into(module)
    assert can_run(read) is None
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32)
    before = state(module)
    taps = taps_of(read, norms, {"input": x})
    assert alike(before, state(module))
    assert list(taps) == ["1.0", "1.2.0", "3.1", "3.3"]
    with torch.no_grad():
        h = module[0](torch.from_numpy(x))
        assert np.array_equal(taps["1.0"].input, h.numpy())
        assert np.array_equal(taps["1.0"].output, module[1][0](h).numpy())
        assert np.array_equal(taps["1.2.0"].input, module[1][:2](h).numpy())
    x, y = taps["3.3"].input.astype(np.float64), taps["3.3"].output
    np.testing.assert_allclose(y, x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6), atol=1e-5)


def test_a_module_in_training_is_run_so_and_left_as_it_was():
    module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.BatchNorm1d(8)).train()
    for p in module.parameters():
        p.grad = torch.ones_like(p)
    read, norms = looked_into(module)
    before, random = state(module), torch.get_rng_state()
    x = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    taps = taps_of(read, norms, {"input": x})
    after = state(module)
    assert after[:2] == before[:2] and torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(a, b) for a, b in zip(after[2], before[2], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(after[3], before[3], strict=True))
    assert abs(taps["2"].output.mean(0)).max() < 1e-6  # by the batch's own statistics
    assert np.array_equal(taps["2"].output, taps_of(read, norms, {"input": x})["2"].output)


def test_hooks_are_removed_when_forward_fails_and_its_words_are_told():
    module = nested()
    read, norms = looked_into(module)
    before = state(module)
    with pytest.raises(UnsupportedError, match=r"^Sequential: PyTorch refuses it: RuntimeError: .*channels"):
        taps_of(read, norms, {"input": np.ones((2, 5, 4, 4), np.float32)})
    assert alike(before, state(module))


def test_hooks_are_removed_when_stopped_from_the_keyboard():
    class Stopping(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(4)

        def forward(self, x):
            self.norm(x)
            raise KeyboardInterrupt

    module = Stopping().eval()
    read, norms = looked_into(module)
    before = state(module)
    with pytest.raises(KeyboardInterrupt):
        taps_of(read, norms, seeded_inputs(read))
    assert alike(before, state(module))


def test_a_user_s_own_hook_stays():
    module, seen = nested(), []
    module[3][1].register_forward_hook(lambda *args: seen.append(1))
    read, norms = looked_into(module)
    taps_of(read, norms, seeded_inputs(read) | {"input": np.ones((2, 3, 4, 4), np.float32)})
    module(torch.ones(2, 3, 4, 4))
    assert seen == [1, 1]


class Twice(nn.Module):
    """Arguments with names, a norm called by keyword and twice, one never called, one that is changed in place."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.norm, self.unused, self.bare = nn.LayerNorm(4), nn.LayerNorm(4), nn.LayerNorm(4, elementwise_affine=False)

    def forward(self, input_ids, attention_mask):
        x = self.embed(input_ids) * attention_mask[..., None]
        y = self.norm(input=x) + self.norm(x * 2)
        z = self.bare(y)
        z.add_(100)
        y.add_(100)
        return z


def test_arguments_by_name_and_what_forward_does_to_values_afterwards():
    module = Twice().eval()
    read, norms = looked_into(module)
    inputs = seeded_inputs(read)
    assert list(inputs) == ["input_ids", "attention_mask"]
    assert inputs["input_ids"].max() < 10 and inputs["attention_mask"].min() == 1
    done = run(read, norms, dict(reversed(inputs.items())))
    assert set(done.taps) == {"norm", "bare"}
    assert done.missing == {"unused": "the module's forward did not call it"}
    x = module.embed.weight.detach().numpy()[inputs["input_ids"]]
    assert np.array_equal(done.taps["norm"].input, x)  # the first call
    assert abs(done.taps["bare"].input).max() < 50 and abs(done.taps["bare"].output).max() < 50


def test_a_norm_that_is_the_whole_module_in_bfloat16():
    module = nn.RMSNorm(6, eps=1e-6, dtype=torch.bfloat16)
    read, norms = looked_into(module)
    (tap,) = taps_of(read, norms, seeded_inputs(read)).values()
    assert tap.input.dtype == tap.output.dtype == ml_dtypes.bfloat16
    assert tap.input.shape == (2, 8, 6)


def test_files_that_only_a_pickle_could_run_are_refused(tmp_path):
    module = nested()
    torch.save(module.state_dict(), tmp_path / "state.pt")
    torch.save(module, tmp_path / "whole.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))).save(tmp_path / "script.pt")
    reasons = {
        "state.pt": "the file holds weights and no program that can be run; pass the torch.nn.Module that uses them",
        "whole.pt": "to load the module would execute the pickle in the file; load it yourself and pass the "
        "torch.nn.Module",
        "script.pt": "the modules of a TorchScript file cannot be tapped; pass the torch.nn.Module itself",
    }
    for name, reason in reasons.items():
        read = read_model(tmp_path / name)
        assert can_run(read) == reason
        with pytest.raises(UnsupportedError, match=f"cannot be run: {reason[:20]}"):
            run(read, [], {})


def test_a_copy_gives_the_same_numbers():
    module = nested()
    twin = copy.deepcopy(module)
    x = {"input": np.ones((2, 3, 4, 4), np.float32)}
    one, two = (taps_of(*looked_into(m), x) for m in (module, twin))
    assert all(np.array_equal(one[name].output, two[name].output) for name in one)


class Restless(torch.nn.Module):
    """Counts its calls in two buffers, one of them put anew, and drops values whatever its mode."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(4)
        self.register_buffer("added", torch.zeros(1))
        self.register_buffer("replaced", torch.zeros(1))

    def forward(self, x):
        self.added += 1
        self.replaced = self.replaced + 1
        return self.norm(torch.nn.functional.dropout(x, 0.5, training=True))


@pytest.mark.parametrize("training", [False, True])
def test_a_module_that_changes_in_its_forward_is_left_as_it_was(training):
    module = Restless().train(training)
    held = module.added, module.replaced
    random = torch.get_rng_state()
    same = ln.compare(module, module)
    assert (same.verdict, same.status(0)) == ("same", "equal")
    assert module.added is held[0] and module.replaced is held[1]
    assert module.added.item() == module.replaced.item() == 0
    assert torch.equal(random, torch.get_rng_state())


def test_a_forward_that_ends_python_does_not():
    class Ending(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.LayerNorm(4)

        def forward(self, x):
            raise SystemExit(7)

    assert "PyTorch refuses it: SystemExit: 7" in ln.compare(Ending(), Ending()).ran.why_not["a"]

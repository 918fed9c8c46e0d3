# SPDX-License-Identifier: MIT
"""This file normalizes a few tokens by hand, in four steps, and has `layer_norm` print the same numbers."""

import numpy as np

from layernorm import layer_norm


def by_hand(x, gamma, beta, eps=1e-5):
    """y = γ·(x − μ)/√(σ² + ε) + β, where every row of x: (tokens, features) has a μ and a σ² of its own."""
    # keepdims leaves one column, (tokens, 1), so that a row meets its own mean when it is subtracted.
    mean = x.mean(axis=-1, keepdims=True)
    variance = np.square(x - mean).mean(axis=-1, keepdims=True)  # divided by d, not by d − 1
    standard = (x - mean) / np.sqrt(variance + eps)  # eps: the row of fives would be 0/0 without it
    return gamma * standard + beta


tokens = np.array([[2.0, 4.0, 6.0, 8.0], [20.0, 40.0, 60.0, 80.0], [5.0, 5.0, 5.0, 5.0]])
three_features = np.array([[1.0, 3.0, 5.0], [101.0, 103.0, 105.0], [7.0, 7.0, 7.0]])

for norm in (by_hand, layer_norm):
    print(f"{norm.__name__}: three tokens, and the first again with γ = 2 and β = 1")
    print(np.round(norm(tokens, np.ones(4), np.zeros(4)), 3))
    print(np.round(norm(tokens[0], np.full(4, 2.0), np.ones(4)), 3))
    print()

for norm in (by_hand, layer_norm):
    print(f"{norm.__name__}: [1 3 5], the same 100 higher, and three sevens; then with γ = 2 and β = 1")
    print(np.round(norm(three_features, np.ones(3), np.zeros(3)), 4))
    print(np.round(norm(three_features, np.full(3, 2.0), np.ones(3)), 4))
    print()

print("The first token times 0.001: its spread of 0.0022 is no longer far above √ε = 0.0032, and ε shows.")
for norm in (by_hand, layer_norm):
    print(np.round(norm(0.001 * tokens[0], 1.0, 0.0), 3))

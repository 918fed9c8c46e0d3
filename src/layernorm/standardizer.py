# SPDX-License-Identifier: MIT
"""This file normalizes data: one feature, a column, across many examples, the rows."""

from __future__ import annotations  # so that help() prints ArrayLike, and not a screen of what it stands for

import importlib
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from layernorm.ops.arrays import array_of
from layernorm.ops.moments import Array, Moments
from layernorm.spec.errors import ArgumentError


class Standardizer:
    """Shift and scale each column by the mean and deviation that the fitted rows had.

        y = (x - mean) / scale,  scale = √(Σ (x - mean)² / (n - ddof)), or 1 where that is 0

    It has the methods and attributes of scikit-learn's StandardScaler and stands in its pipelines. NaN is a
    missing value: `fit` leaves it out, column by column, and `transform` keeps it. The rows may come in any
    pieces (`partial_fit`); mean and deviation are right to 2 ulp for all of them together. Only a column of
    equal values is constant and gets scale 1: scikit-learn must also count as constant what varies by less
    than its own rounding errors, and here there is nothing to allow for.

    Args:
        with_mean: subtract the mean.
        with_std: divide by the deviation.
        ddof: 0 divides by n, 1 by n - 1.

    >>> Standardizer().fit_transform([[2.0, 7.0], [4.0, 7.0], [6.0, 7.0]]).round(3)
    array([[-1.225,  0.   ],
           [ 0.   ,  0.   ],
           [ 1.225,  0.   ]])
    """

    mean_: Array  # (columns), float64 like the next two
    var_: Array | None  # None if not with_std; infinite or 0 where the square of the deviation is
    scale_: Array | None
    n_samples_seen_: int | Array  # one number if no column misses a value, as in scikit-learn
    n_features_in_: int

    def __init__(self, *, with_mean: bool = True, with_std: bool = True, ddof: int = 0) -> None:
        self.with_mean = with_mean
        self.with_std = with_std
        self.ddof = ddof

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Learn each column's mean and deviation from X: (rows, columns) alone; y is ignored.

        Raises:
            ArgumentError: X is not two-dimensional or holds an infinity.
            ArrayTypeError: X is masked, or holds anything but booleans, integers or floats of up to 64 bits.

        >>> Standardizer().fit([[1.0], [3.0]]).mean_
        array([2.])
        """
        return self._learn(_moments(_table(X)))

    def partial_fit(self, X: ArrayLike, y: object = None) -> Self:
        """Learn from more rows, as if they and all earlier ones had come in one `fit`; y is ignored.

        Raises:
            ArgumentError: as for `fit`, or X has another number of columns than the rows before.
            ArrayTypeError: as for `fit`.

        >>> Standardizer().partial_fit([[1.0]]).partial_fit([[3.0]]).mean_
        array([2.])
        """
        if not hasattr(self, "n_features_in_"):
            return self.fit(X)
        return self._learn(self._moments.merge(_moments(self._fitted(X))))

    def transform(self, X: ArrayLike) -> Array:
        """Give (X - `mean_`) / `scale_` in X's type, or in float64 for booleans and integers.

        It is computed in float64 and rounded once; an infinity comes out where X - `mean_` exceeds float64.

        Raises:
            ArgumentError: nothing was fitted, or X is not two-dimensional or has more or fewer columns.
            ArrayTypeError: as for `fit`.

        >>> Standardizer().fit([[1.0], [3.0]]).transform([[2], [5]])
        array([[0.],
               [3.]])
        """
        table = self._fitted(X)
        y = table.astype(np.float64)
        if self.with_mean:
            # Two steps: the rounded mean alone would be wrong by half an ulp of the offset.
            hi, lo = self._moments.mean_pair
            y = (y - hi) - lo
        if self.scale_ is not None:
            y /= self.scale_
        return y.astype(table.dtype)

    def fit_transform(self, X: ArrayLike, y: object = None) -> Array:
        """Fit X and transform it; errors are those of `fit`.

        >>> Standardizer().fit_transform([[1], [3]])
        array([[-1.],
               [ 1.]])
        """
        return self.fit(X).transform(X)

    def inverse_transform(self, X: ArrayLike) -> Array:
        """Give X · `scale_` + `mean_`, the data before `transform`, in X's type; errors are those of `transform`.

        >>> Standardizer().fit([[1.0], [3.0]]).inverse_transform([[0.0], [3.0]])
        array([[2.],
               [5.]])
        """
        table = self._fitted(X)
        x = table.astype(np.float64)
        if self.scale_ is not None:
            x *= self.scale_
        if self.with_mean:
            hi, lo = self._moments.mean_pair
            x = hi + (x + lo)
        return x.astype(table.dtype)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Give the three options by name, as scikit-learn asks for them.

        >>> Standardizer().get_params()
        {'with_mean': True, 'with_std': True, 'ddof': 0}
        """
        return {"with_mean": self.with_mean, "with_std": self.with_std, "ddof": self.ddof}

    def set_params(self, **params: Any) -> Self:
        """Change options by name; fit again for them to take effect.

        Raises:
            ArgumentError: there is no option of that name.

        >>> Standardizer().set_params(ddof=1)
        Standardizer(with_mean=True, with_std=True, ddof=1)
        """
        for name, value in params.items():
            if name not in self.get_params():
                raise ArgumentError(f"Standardizer has no option {name!r}; it has {', '.join(self.get_params())}.")
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        # Only scikit-learn (1.6 or later) asks for it, so it is loaded; a pipeline that ends here must know.
        tags = importlib.import_module("sklearn.utils")
        return tags.Tags(
            estimator_type=None,
            target_tags=tags.TargetTags(required=False),
            transformer_tags=tags.TransformerTags(preserves_dtype=["float64", "float32", "float16"]),
            input_tags=tags.InputTags(allow_nan=True),
        )

    def __repr__(self) -> str:
        return f"Standardizer({', '.join(f'{name}={value!r}' for name, value in self.get_params().items())})"

    def _learn(self, moments: Moments) -> Self:
        """Take the attributes from the moments of all rows so far."""
        count, deviation = moments.count, moments.std(self.ddof)
        self._moments = moments
        self.mean_ = moments.mean
        self.var_ = moments.variance(self.ddof) if self.with_std else None
        self.scale_ = np.where(deviation == 0, 1.0, deviation) if self.with_std else None
        self.n_samples_seen_ = int(count[0]) if len(set(count)) == 1 else count
        self.n_features_in_ = len(count)
        return self

    def _fitted(self, X: ArrayLike) -> Array:
        """Give X as a table that has the fitted columns."""
        if not hasattr(self, "n_features_in_"):
            raise ArgumentError("this Standardizer has not been fitted and knows no mean yet; call fit(X) first.")
        table = _table(X)
        if table.shape[1] != self.n_features_in_:
            raise ArgumentError(
                f"X has {table.shape[1]} columns (X.shape = {table.shape}) but {self.n_features_in_} were "
                "fitted; pass the same features."
            )
        return table


def _table(X: ArrayLike) -> Array:
    table = array_of(X, "X")
    if table.ndim != 2:
        raise ArgumentError(
            f"X has shape {table.shape}, which is not (rows, columns); "
            "pass two dimensions, X.reshape(-1, 1) for a single column."
        )
    return table


def _moments(table: Array) -> Moments:
    infinite = np.isinf(table).any(axis=0)
    if infinite.any():
        raise ArgumentError(
            f"X holds an infinity in column {infinite.argmax()}, so it has no mean; "
            "replace it, by NaN if the value is missing."
        )
    return Moments.of(table, axis=0, where=~np.isnan(table))

"""Minimizes the loss with SciPy's L-BFGS: the fleet computes gradients, and SciPy decides where."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from program import PENALTY, load
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

import psfleet

JOB = Path(__file__).with_name("job.yaml")


def main() -> None:
    """Prints the loss that L-BFGS reaches on the fleet, and that of scikit-learn."""
    run = psfleet.start(JOB, fresh=True, paused=True)
    try:
        weights = run.weights

        def objective(vector: np.ndarray) -> tuple[float, np.ndarray]:
            loss, gradient = run.gradient(vector)
            return loss, weights.flat(gradient).astype(np.float64)

        found = minimize(objective, weights.get_flat(), jac=True, method="L-BFGS-B", options={"maxiter": 200})
        weights.set_flat(found.x)
        expected = sklearn_loss()
        sys.stdout.write(f"L-BFGS on the fleet: {found.fun:.6f} after {found.nfev} gradients\n")
        sys.stdout.write(f"scikit-learn:        {expected:.6f}\n")
        if abs(found.fun - expected) > 1e-4:
            sys.exit(f"they differ by {abs(found.fun - expected):.2g}, expected at most 1e-4")
    finally:
        run.stop()
        run.wait()


def sklearn_loss() -> float:
    """The same loss of scikit-learn's solution."""
    x, y = load()
    model = LogisticRegression(C=1.0, max_iter=1000, tol=1e-8).fit(x, y)
    slope = model.coef_[0]
    logits = x @ slope + model.intercept_[0]
    return float(np.mean(np.logaddexp(0, logits) - y * logits) + PENALTY / len(x) * np.sum(slope**2))


if __name__ == "__main__":
    main()

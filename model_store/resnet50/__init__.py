"""A sample model with heavy arithmetic: ResNet-50 on photographs, with random weights.

It costs what a trained one costs; its answers mean nothing. ``model.py`` and ``handler.py`` go into
the archive as they are; ``archive.py`` stays outside.
"""

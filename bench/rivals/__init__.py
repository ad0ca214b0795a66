"""Rival servers with the very same model code: BentoML and Triton, each in its own environment.

``bentoml_server.Bento`` and ``triton_server.Triton`` start a server for one packed archive. A
benchmark posts ``server.body(text)`` to ``server.url`` with ``server.headers``, as to any server.
"""

"""A handler whose workers never load: they lack a package, or end without a word to the server."""

import os

if "BROKEN_WORDS" in os.environ:
    print(os.environ["BROKEN_WORDS"], flush=True)
    os._exit(3)

import no_such_package  # noqa: F401


class Broken:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        return data

"""Graph mode on a tensor made once: what a batch costs is inference alone. Or, if told so, eagerly.

The handler of all networks of the micro benchmark; what differs is in their model.py. A request is
a few bytes that nobody reads; the answer is one number.

Optional settings in model-config.yaml::

    handler:
      layers: 1    # of a model that has layers; absent: all
      eager: true  # no graph
"""

import torch
from model import Network

SEED = 7


class GraphHandler:
    """Builds a network with random weights, freezes it, runs it."""

    def initialize(self, context):
        """Make the weights, always the same, and the graph. RuntimeError when it is of no use."""
        settings = dict(context.model_yaml_config.get("handler") or {})
        eager = settings.pop("eager", False)
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.no_grad():
            torch.manual_seed(SEED)
            network = Network(**settings).eval()
            self.example = network.example()
            # A batch of two: with one, a dimension of one might be taken for a constant.
            self.graph = network
            if not eager:
                traced = torch.jit.trace(network, self._batch(2), check_trace=False)
                self.graph = torch.jit.optimize_for_inference(torch.jit.freeze(traced))
        if not torch.isfinite(self._run(1)).all():
            raise RuntimeError("the random weights do not lead to finite answers")

    def handle(self, data, context):
        """Return the highest score of each request, all of which are alike."""
        return [[score] for score in self._run(len(data)).amax(dim=1).tolist()]

    def _batch(self, count):
        return self.example.expand(count, *self.example.shape[1:]).contiguous()

    def _run(self, count):
        with torch.no_grad():
            return self.graph(self._batch(count))

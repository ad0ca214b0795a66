"""The model store's networks for every server alike: the same code and weights from one folder.

It holds NAME.py, the network's class as the model store has it, and NAME.pth, its weights.
"""

import importlib.util

import torch

SHAPES = {
    "digits": (("float32", (8, 8)), ("float32", (10,))),
    "minilm": (("int64", (-1,)), ("float32", (384,))),
    "resnet50": (("float32", (3, 224, 224)), ("float32", (1000,))),
}
"""Type and shape of input and output of one request."""
CLASSES = {"digits": "Digits", "minilm": "MiniLM", "resnet50": "ResNet50"}
THREADS = {"digits": 1, "minilm": 2, "resnet50": 2}
"""Of torch, as the model store has them: with more, a small network waits for its threads."""
INK = 16


class Network:
    """A batch in, a batch out."""

    def __init__(self, folder, name):
        torch.set_num_threads(THREADS[name])
        spec = importlib.util.spec_from_file_location(f"network_{name}", f"{folder}/{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.name, self.network = name, getattr(module, CLASSES[name])().eval()
        self.network.load_state_dict(torch.load(f"{folder}/{name}.pth", weights_only=True))
        if name == "resnet50":
            self.network.to(memory_format=torch.channels_last)

    def of_requests(self, rows):
        """Answers of single requests, (n, width); sentences are padded to the longest of them."""
        if self.name != "minilm":
            return self.of_batch(torch.stack(rows) if len(rows) > 1 else rows[0][None])
        lengths = torch.tensor([len(row) for row in rows])
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return self.of_batch(ids, lengths)

    def of_batch(self, *inputs):
        """Answers of a batch; ``inputs`` of sentences are ids and lengths."""
        with torch.inference_mode():
            if self.name == "digits":
                return self.network((inputs[0] / INK).unsqueeze(1)).softmax(1)
            return self.network(*inputs)

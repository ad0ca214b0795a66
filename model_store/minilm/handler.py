"""An ordinary TorchServe handler: nothing of Shunter is imported here.

A request is one text, as JSON ``{"text": "..."}`` or as plain UTF-8. The answer is
``{"embedding": [...]}``: 384 numbers, a vector of length one; the dot product of two of them says
how close two texts are in meaning. Of a long text only the first 256 tokens count. A bad request
is answered 400 and leaves the others of its batch alone.

Optional settings in model-config.yaml::

    handler:
      threads: 2    # of torch in this worker; absent: left as it is
"""

import json
import os
from pathlib import Path

import torch
from tokenizers import Tokenizer
from ts.torch_handler.base_handler import BaseHandler

TOKENS = 256
"""Longest text the model was trained for, with the two marks around it."""
CHARACTERS = 10_000
"""More are cut off unread: 256 tokens are never that long in a text worth embedding, and nobody
should wait while a novel is tokenized."""
WIDTH = 384
# An integer with an exponent is JSON as well, and written twice as fast as a decimal fraction.
ANSWER = '{"embedding":[' + ",".join(["%de-6"] * WIDTH) + "]}"

# A batch is tokenized in less time than it takes to hand it to other threads.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class MiniLMHandler(BaseHandler):
    """Tokenize, embed, encode."""

    def initialize(self, context) -> None:  # noqa: ANN001
        """Load the weights and the tokenizer that were packed together."""
        threads = (context.model_yaml_config.get("handler") or {}).get("threads")
        if threads is not None:
            torch.set_num_threads(int(threads))
        super().initialize(context)
        folder = Path(context.system_properties["model_dir"])
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(TOKENS)
        self.tokenizer.enable_padding()

    def preprocess(self, data: list[dict]) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids (n, longest) and lengths (n,) of the good requests.

        The others are remembered by their place.
        """
        self.problems = {}
        texts = []
        for place, request in enumerate(data):
            try:
                texts.append(text_of(request.get("body", request.get("data"))))
            except ValueError as error:
                self.problems[place] = str(error)
        self.places = len(data)
        if not texts:
            return torch.empty(0, 0, dtype=torch.long), torch.empty(0, dtype=torch.long)
        encoded = self.tokenizer.encode_batch_fast(texts)
        ids = torch.tensor([each.ids for each in encoded])
        lengths = torch.tensor([sum(each.attention_mask) for each in encoded])
        return ids, lengths

    def inference(self, data: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Vectors (n, 384) of length one."""
        ids, lengths = data
        if not len(ids):
            return torch.empty(0, WIDTH)
        with torch.inference_mode():
            return self.model(ids.to(self.device), lengths.to(self.device))

    def infer(self, batch) -> torch.Tensor:  # noqa: ANN001
        """Vectors of token ids that come by the network front end, padded.

        A request is refused that has none, too many, or such that there are not.
        """
        ids, lengths = batch["ids"], batch.sizes("ids")[:, 0].to(batch["ids"].device)
        known = self.model.words.num_embeddings
        is_good = ((ids >= 0) & (ids < known)).all(1) & (lengths > 0) & (lengths <= TOKENS)
        for request in (~is_good).nonzero().flatten().tolist():
            batch.refuse(request)
        ids = ids[:, :TOKENS].clamp(0, known - 1)
        return self.inference((ids, lengths.clamp(1, TOKENS)))

    def postprocess(self, data: torch.Tensor) -> list[dict | str]:
        """One answer for each request, in order."""
        vectors = iter((data * 1_000_000).round().int().tolist())
        return [
            self._refuse(place) if place in self.problems else ANSWER % tuple(next(vectors))
            for place in range(self.places)
        ]

    def _refuse(self, place: int) -> dict:
        problem = self.problems[place]
        self.context.set_response_status(400, "Bad Request", idx=place)
        return {"code": 400, "type": "BadRequest", "message": problem}


def text_of(body: object) -> str:
    """The text in a request's body; ValueError says what is wrong with it."""
    if isinstance(body, bytes | bytearray):
        body = _decoded(body)
    if isinstance(body, str) and body.startswith("{"):
        body = _json(body)
    if isinstance(body, dict):
        body = body.get("text")
    if not isinstance(body, str):
        raise ValueError('send {"text": "..."} or plain text')
    text = body[:CHARACTERS]
    if not text or text.isspace():
        raise ValueError("the text is empty")
    # JSON can name halves of characters, which the tokenizer would refuse with the whole batch.
    return text if text.isascii() else _whole(text)


def _decoded(body: bytes | bytearray) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"the text is not UTF-8: {error}") from error


def _json(body: str) -> object:
    try:
        return json.loads(body)
    except ValueError as error:
        raise ValueError(f"the body starts like JSON but is none: {error}") from error


def _whole(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the text has no UTF-8 form: {error}") from error
    return text

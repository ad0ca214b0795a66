"""An ordinary TorchServe handler: nothing of Shunter is imported here.

A request is one 8x8 image with ink values 0..16, in one of three forms: JSON
``{"image": [[...], ...]}``, 64 raw bytes, or a PNG or JPEG (light digit on dark ground, any size).
The answer is ``{"label": 7, "probabilities": [...]}``. By the network front end it is the image and
the probabilities as tensors. A bad request is answered 400 and leaves
the others of its batch alone.
"""

import io
import json
from pathlib import Path

import torch
from PIL import Image, UnidentifiedImageError
from ts.torch_handler.base_handler import BaseHandler

SIDE = 8
INK = 16
"""Darkest value of the data set."""


class DigitsHandler(BaseHandler):
    """Decode, classify, encode."""

    def initialize(self, context) -> None:  # noqa: ANN001
        """Load the weights and the description that was packed with them."""
        super().initialize(context)
        folder = Path(context.system_properties["model_dir"])
        self.description = json.loads((folder / "digits.json").read_text(encoding="utf-8"))

    def preprocess(self, data: list[dict]) -> torch.Tensor:
        """Images of the good requests; the others are remembered by their place."""
        self.problems = {}
        images = []
        for place, request in enumerate(data):
            try:
                images.append(image_of(request.get("body", request.get("data"))))
            except ValueError as error:
                self.problems[place] = str(error)
        self.places = len(data)
        batch = torch.stack(images) if images else torch.empty(0, SIDE, SIDE)
        return (batch / INK).unsqueeze(1)

    def postprocess(self, data: torch.Tensor) -> list[dict]:
        """One answer for each request, in order."""
        scores = iter(data.softmax(dim=1).tolist())
        return [
            self._refuse(place) if place in self.problems else _answer(next(scores))
            for place in range(self.places)
        ]

    def infer(self, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        """The network front end's way: a batch of images and room for their probabilities.

        Both are views of the tensor queue; nothing is decoded, nothing encoded.
        """
        scores = self.model((inputs[0] / INK).unsqueeze(1))
        torch.softmax(scores, dim=1, out=outputs[0])

    def describe_handle(self) -> dict:
        """What ``GET /models/digits?customized=true`` adds."""
        return self.description

    def _refuse(self, place: int) -> dict:
        problem = self.problems[place]
        self.context.set_response_status(400, "Bad Request", idx=place)
        return {"code": 400, "type": "BadRequest", "message": problem}


def image_of(body: object) -> torch.Tensor:
    """The image (8, 8) in a request's body; ValueError says what is wrong with it."""
    if isinstance(body, str):
        body = body.encode()
    if isinstance(body, bytes | bytearray):
        if len(body) == SIDE * SIDE and max(body) <= INK:
            return torch.tensor(list(body), dtype=torch.float32).view(SIDE, SIDE)
        body = _json(body) if body[:1] == b"{" else _picture(bytes(body))
    if isinstance(body, torch.Tensor):
        return body
    if not isinstance(body, dict) or "image" not in body:
        raise ValueError('send {"image": [[...], ...]}, 64 raw bytes, or a PNG or JPEG')
    return _checked(body["image"])


def _checked(rows: object) -> torch.Tensor:
    try:
        image = torch.tensor(rows, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError("image must be 8 rows of 8 numbers") from error
    if image.shape != (SIDE, SIDE):
        raise ValueError(f"image must be 8 rows of 8 numbers, not of shape {tuple(image.shape)}")
    if not bool(((image >= 0) & (image <= INK)).all()):
        raise ValueError("image values must be between 0 and 16")
    return image


def _json(body: bytes | bytearray) -> object:
    try:
        return json.loads(body)
    except ValueError as error:
        raise ValueError(f"the body starts like JSON but is none: {error}") from error


def _picture(body: bytes) -> torch.Tensor:
    try:
        with Image.open(io.BytesIO(body)) as picture:
            small = picture.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError("the body is neither JSON, 64 raw bytes, PNG nor JPEG") from error
    grey = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8)
    return grey.view(SIDE, SIDE).float() * (INK / 255)


def _answer(probabilities: list[float]) -> dict:
    label = max(range(len(probabilities)), key=probabilities.__getitem__)
    return {"label": label, "probabilities": probabilities}

"""An ordinary TorchServe handler: nothing of Shunter is imported here.

A request is one JPEG or PNG of any size. The answer is ``{"classes": [...], "probabilities":
[...]}``: the five likeliest of 1000 classes by number, likeliest first. A bad request is answered
400 and leaves the others of its batch alone.

Optional settings in model-config.yaml::

    handler:
      threads: 2    # of torch in this worker; absent: left as it is
"""

import io

import torch
from PIL import Image, UnidentifiedImageError
from ts.torch_handler.base_handler import BaseHandler

SHORTER = 256
SIDE = 224
TOP = 5
LONGEST = 100
"""Longer than wide, or the other way, by this factor at most: a thinner strip is no picture."""
# Mean and deviation of ImageNet's red, green and blue, for values 0..255.
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1) * 255
DEVIATION = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1) * 255


class ResNet50Handler(BaseHandler):
    """Decode, classify, encode."""

    def initialize(self, context) -> None:  # noqa: ANN001
        """Load the weights."""
        threads = (context.model_yaml_config.get("handler") or {}).get("threads")
        if threads is not None:
            torch.set_num_threads(int(threads))
        super().initialize(context)
        # Pixels of a picture come with their colours side by side; convolutions like that too.
        self.model.to(memory_format=torch.channels_last)

    def preprocess(self, data: list[dict]) -> torch.Tensor:
        """Pixels (n, 3, 224, 224), bytes, of the good requests.

        The others are remembered by their place.
        """
        self.problems = {}
        images = []
        for place, request in enumerate(data):
            try:
                images.append(pixels_of(request.get("body", request.get("data"))))
            except ValueError as error:
                self.problems[place] = str(error)
        self.places = len(data)
        batch = torch.stack(images) if images else torch.empty(0, SIDE, SIDE, 3, dtype=torch.uint8)
        return batch.permute(0, 3, 1, 2)

    def inference(self, data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Probabilities and classes (n, 5), likeliest first."""
        if not len(data):
            return torch.empty(0, TOP), torch.empty(0, TOP)
        with torch.inference_mode():
            # The whole batch at once, and where the model is: bytes travel to it, not floats.
            images = data.to(self.device).float()
            images = images.sub_(MEAN.to(self.device)).div_(DEVIATION.to(self.device))
            return self.model(images).softmax(dim=1).topk(TOP)

    def infer(self, batch) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ANN001
        """The same of pictures that come as byte strings, by the network front end or Triton."""
        images = []
        for request, body in enumerate(batch["picture"]):
            try:
                images.append(pixels_of(body))
            except ValueError:
                batch.refuse(request)
                images.append(torch.zeros(SIDE, SIDE, 3, dtype=torch.uint8))
        return self.inference(torch.stack(images).permute(0, 3, 1, 2))

    def postprocess(self, data: tuple[torch.Tensor, torch.Tensor]) -> list[dict]:
        """One answer for each request, in order."""
        probabilities, classes = data
        found = iter(zip(probabilities.tolist(), classes.tolist(), strict=True))
        return [
            self._refuse(place) if place in self.problems else _answer(*next(found))
            for place in range(self.places)
        ]

    def _refuse(self, place: int) -> dict:
        problem = self.problems[place]
        self.context.set_response_status(400, "Bad Request", idx=place)
        return {"code": 400, "type": "BadRequest", "message": problem}


def pixels_of(body: object) -> torch.Tensor:
    """Pixels (224, 224, 3), bytes, of an encoded picture; ValueError says what is wrong with it."""
    if not isinstance(body, bytes | bytearray):
        raise ValueError("send a JPEG or PNG as the body")
    try:
        with Image.open(io.BytesIO(body), formats=("JPEG", "PNG")) as picture:
            cropped = _cropped(picture)
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError("the body is no JPEG or PNG that can be read") from error
    grid = torch.frombuffer(bytearray(cropped.tobytes()), dtype=torch.uint8)
    return grid.view(SIDE, SIDE, 3)


def _cropped(picture: Image.Image) -> Image.Image:
    """The square in the middle of the picture, its shorter side made 256 first."""
    width, height = picture.size
    if max(width, height) > LONGEST * min(width, height):
        raise ValueError(f"the picture is too thin: {width} x {height}")
    # JPEG can be decoded at half, a quarter or an eighth of its size, in much less time.
    picture.draft("RGB", (SHORTER, SHORTER))
    scale = SHORTER / min(picture.size)
    size = [max(SHORTER, round(side * scale)) for side in picture.size]
    resized = picture.convert("RGB").resize(size, Image.Resampling.BILINEAR)
    left, top = ((side - SIDE) // 2 for side in size)
    return resized.crop((left, top, left + SIDE, top + SIDE))


def _answer(probabilities: list[float], classes: list[int]) -> dict:
    return {"classes": classes, "probabilities": probabilities}

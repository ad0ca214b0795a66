"""The DISB benchmark's networks and pure parts."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

NAMES = ("vgg19", "resnet152", "densenet201", "inception_v3", "distilbert")


@pytest.fixture
def models(script) -> ModuleType:
    return script("disb_models")


@pytest.mark.parametrize(
    ("name", "published", "leaves"),
    [
        ("vgg19", 143_667_240, 45),
        ("resnet152", 60_192_808, 364),
        ("densenet201", 20_013_928, 608),
        ("inception_v3", 23_834_568, 296),
        ("distilbert", 66_362_880, 57),
    ],
)
def test_networks_have_the_published_size(
    models: ModuleType, name: str, published: int, leaves: int
) -> None:
    network = models.skeleton(name)
    assert models.parameters(network) == published
    small = models.narrower(models.skeleton(name), models.SMALL[name]["width"])
    assert models.parameters(small) < published / 2
    assert len(_leaves(network)) == len(_leaves(small)) == leaves
    assert [type(a) for a in _leaves(network)] == [type(a) for a in _leaves(small)]


def _leaves(network: torch.nn.Module) -> list[torch.nn.Module]:
    return [each for each in network.modules() if not list(each.children())]


@pytest.mark.parametrize("name", NAMES)
def test_small_networks_run_and_are_always_the_same(models: ModuleType, name: str) -> None:
    given = {**models.SMALL[name], "width": 0.125}
    outputs = []
    for _ in range(2):
        network, example = models.build(name, **given)
        assert not network.training
        with torch.inference_mode():
            outputs.append(network(example))
    assert torch.equal(*outputs)
    assert torch.isfinite(outputs[0]).all()
    assert 1e-3 < outputs[0].std() < 1e3


def test_a_width_that_splits_a_channel_is_refused(models: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"width 0\.3"):
        models.build("vgg19", width=0.3)

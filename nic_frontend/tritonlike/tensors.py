"""Tensors of a request and of its answer, in the shape of ``tritonclient``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np

from shunter.batching.queue.tensor_spec import ANY, TensorSpec, dtype_of
from shunter.nic_frontend.client.requests.calls import Array
from shunter.nic_frontend.client.requests.errors import BadRequestError
from shunter.nic_frontend.tritonlike.shared_regions import Regions
from shunter.nic_frontend.tritonlike.values import (
    DATATYPES,
    from_region,
    given,
    taken,
    triton_type,
)

try:  # one class, so that code catches it whichever client it uses
    from tritonclient.utils import InferenceServerException
except ImportError:

    class InferenceServerException(Exception):  # type: ignore[no-redef]
        """A request was not answered."""

        def __init__(self, msg: str, status: str | None = None, debug_details: Any = None) -> None:
            """``status`` is of gRPC; ``debug_details`` the cause."""
            super().__init__(msg)
            self._msg, self._status, self._debug_details = msg, status, debug_details

        def __str__(self) -> str:
            return f"[{self._status}] {self._msg}" if self._status else self._msg

        def message(self) -> str:
            """What happened."""
            return self._msg

        def status(self) -> str | None:
            """The code."""
            return self._status

        def debug_details(self) -> Any:
            """The cause."""
            return self._debug_details


class InferInput:
    """An input, with its data or the region where they lie."""

    def __init__(self, name: str, shape: Sequence[int], datatype: str) -> None:
        """Raises InferenceServerException for a type that is not served."""
        if datatype not in DATATYPES:
            raise InferenceServerException(
                f"{name}: datatype {datatype}; served are {', '.join(DATATYPES)}"
            )
        self._name, self._shape, self._datatype = name, list(shape), datatype
        self._data: Array | None = None
        self._region: tuple[str, int, int] | None = None

    def name(self) -> str:
        """As of the model."""
        return self._name

    def datatype(self) -> str:
        """Triton's name."""
        return self._datatype

    def shape(self) -> list[int]:
        """With the batch."""
        return self._shape

    def set_shape(self, shape: Sequence[int]) -> InferInput:
        """Another shape for what is set after this."""
        self._shape = list(shape)
        return self

    def set_data_from_numpy(self, input_tensor: Array, binary_data: bool = True) -> InferInput:
        """The data; numbers are not copied, so they must not change while they are sent.

        BF16: an array of float32, as for Triton's client; BYTES: of objects, or of numpy's S.
        """
        if not isinstance(input_tensor, np.ndarray):
            raise InferenceServerException(f"{self._name}: the input must be a numpy array")
        data = given(self._datatype, input_tensor)
        if data is None:
            raise InferenceServerException(
                f"{self._name}: got {input_tensor.dtype}, expected {self._datatype}"
            )
        if list(input_tensor.shape) != self._shape:
            raise InferenceServerException(
                f"{self._name}: got shape {list(input_tensor.shape)}, expected {self._shape}"
            )
        self._data, self._region = data, None
        return self

    def set_shared_memory(self, region_name: str, byte_size: int, offset: int = 0) -> InferInput:
        """The data lie in a registered region, from ``offset`` on."""
        self._data, self._region = None, (region_name, byte_size, offset)
        return self

    def snapshot(self) -> InferInput:
        """As it is now: what is set later does not change it; a region stays where it is."""
        found = copy(self)
        found._shape = list(self._shape)
        found._data = None if self._data is None else self._data.copy("C")
        return found

    def array(self, regions: Regions) -> Array:
        """The data. Raises RegionError, and BadRequestError when there are none."""
        if self._data is not None:
            return self._data
        if self._region is None:
            raise BadRequestError(f"{self._name} has no data")
        view = regions.view(*self._region)
        return from_region(self._datatype, view, self._shape, self._name)


class InferRequestedOutput:
    """An output that is wanted, and the region where it shall be."""

    def __init__(self, name: str, binary_data: bool = True, class_count: int = 0) -> None:
        """Raises InferenceServerException for a ``class_count``, which is not served."""
        if class_count:
            raise InferenceServerException(f"{name}: class_count is not served")
        self._name = name
        self.region: tuple[str, int, int] | None = None
        """Name, bytes and offset, if it shall be in shared memory."""

    def name(self) -> str:
        """As of the model."""
        return self._name

    def set_shared_memory(self, region_name: str, byte_size: int, offset: int = 0) -> None:
        """It shall be in a registered region, from ``offset`` on."""
        self.region = region_name, byte_size, offset

    def unset_shared_memory(self) -> None:
        """It shall be an array."""
        self.region = None


class InferResult:
    """An answer."""

    def __init__(
        self,
        model_name: str,
        model_version: str,
        request_id: str,
        arrays: dict[str, Array],
        asked: Sequence[InferRequestedOutput] | None,
    ) -> None:
        """Made by the client."""
        self._of = {"model_name": model_name, "model_version": model_version, "id": request_id}
        self._arrays = arrays
        self._regions = {each.name(): each.region for each in asked or () if each.region}

    def as_numpy(self, name: str) -> Array | None:
        """An output; None when there is none, or when it is in shared memory."""
        array = None if name in self._regions else self._arrays.get(name)
        return None if array is None else taken(array)

    def get_output(self, name: str, as_json: bool = True) -> dict[str, Any] | None:
        """Name, type, shape, and where it is in shared memory."""
        array = self._arrays.get(name)
        if array is None:
            return None
        found: dict[str, Any] = {
            "name": name,
            "datatype": triton_type(array.dtype.name),
            "shape": list(array.shape),
        }
        if region := self._regions.get(name):
            names = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")
            found["parameters"] = dict(zip(names, region, strict=True))
        return found

    def get_response(self, as_json: bool = True) -> dict[str, Any]:
        """All but the data."""
        return {**self._of, "outputs": [self.get_output(name) for name in self._arrays]}


def in_order(
    specs: Sequence[TensorSpec], inputs: Mapping[str, InferInput], regions: Regions
) -> list[Array]:
    """The arrays of the inputs, as the model counts them."""
    names = [spec.name for spec in specs]
    if sorted(names) != sorted(inputs):
        raise BadRequestError(f"inputs {', '.join(inputs)}; the model has {', '.join(names)}")
    for spec in specs:
        if inputs[spec.name].datatype() != triton_type(spec.dtype):
            raise BadRequestError(
                f"{spec.name} is {inputs[spec.name].datatype()}; the model wants "
                f"{triton_type(spec.dtype)}"
            )
    return [inputs[name].array(regions) for name in names]


def batch_of(specs: Sequence[TensorSpec], arrays: Sequence[Array]) -> int | None:
    """The batch that the arrays have in front of the model's shapes; None: there is none."""
    fronts = set()
    for spec, array in zip(specs, arrays, strict=True):
        front = array.shape[: max(0, array.ndim - len(spec.shape))]
        sizes = array.shape[len(front) :]
        fits = len(sizes) == len(spec.shape) and all(
            wanted in (ANY, size) for wanted, size in zip(spec.shape, sizes, strict=True)
        )
        if not fits or len(front) > 1:
            raise BadRequestError(
                f"{spec.name} has shape {list(array.shape)}; the model wants {[-1, *spec.shape]}"
            )
        fronts.add(front)
    if len(fronts) > 1:
        raise BadRequestError("the inputs are batches of different sizes")
    [front] = fronts
    return front[0] if front else None


def output(
    spec: TensorSpec,
    batch: tuple[int, ...],
    asked: InferRequestedOutput | None,
    regions: Regions,
) -> Array:
    """Memory for an output: where it was asked to be, else new."""
    shape = (*batch, *spec.shape)
    if asked is None or asked.region is None:
        return np.empty(shape, dtype_of(spec.dtype))
    view = regions.view(*asked.region)
    size = spec.bytes * (batch[0] if batch else 1)
    if len(view) < size:
        raise BadRequestError(f"{spec.name} has {size} bytes; its region has {len(view)}")
    return np.frombuffer(view[:size], dtype_of(spec.dtype)).reshape(shape)

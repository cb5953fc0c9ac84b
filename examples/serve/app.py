"""Serves an exported posterior: x in, probabilities and uncertainties out.

    pip install fastapi uvicorn onnxruntime
    MODEL=model.onnx uvicorn app:create --factory

It needs neither torch nor stochens. `GET /model` says what the model
takes and gives, and `POST /predict` with {"x": [[0.1, 0.2]]} predicts;
a model of several inputs takes each by its name.
"""

import os
from typing import Any, NoReturn

import numpy as np
import onnxruntime
from fastapi import FastAPI, HTTPException

MOST_ROWS = 1024  # of a request, so that none holds up the others
KINDS = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}


def create() -> FastAPI:
    """The application for the file that MODEL names."""
    onnxruntime.set_default_logger_severity(3)  # noise has defaults
    model = onnxruntime.InferenceSession(os.environ["MODEL"])
    takes = model.get_inputs()
    gives = [output.name for output in model.get_outputs()]
    app = FastAPI(title="A posterior with its uncertainty")

    @app.get("/model")
    def about() -> dict[str, Any]:
        said = model.get_modelmeta().custom_metadata_map
        return {
            "inputs": {one.name: one.shape for one in takes},
            "outputs": gives,
            "made_of": said,
        }

    @app.post("/predict")
    def predict(given: dict[str, Any]) -> dict[str, Any]:
        names = [one.name for one in takes]
        if sorted(given) != sorted(names):
            refuse(f"the model takes {names}, got {sorted(given)}")
        x = {one.name: read(given[one.name], one) for one in takes}
        if len({len(array) for array in x.values()}) > 1:
            shapes = {name: array.shape for name, array in x.items()}
            refuse(f"inputs must have as many rows each, got {shapes}")
        try:
            found = model.run(gives, x)
        except Exception as error:  # onnxruntime's own have no common type
            refuse(f"the model fails on these inputs: {error}")
        return {
            name: array.tolist()
            for name, array in zip(gives, found, strict=True)
        }

    return app


def read(values: Any, wanted: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """Numbers of a request as the array that this input wants."""
    name, shape = wanted.name, wanted.shape  # ["batch", 3, 32, 32]
    try:
        array = np.asarray(values)
    except ValueError:
        refuse(f"{name} must have rows of one length")
    if array.dtype.kind not in "biuf":
        refuse(f"{name} must be numbers in lists of lists")
    kind = np.dtype(KINDS[wanted.type])
    if kind.kind in "ib" and array.dtype.kind not in "ib":
        refuse(f"{name} must be whole numbers that {kind.name} can hold")
    sizes = zip(shape, array.shape, strict=False)
    free = (isinstance(size, str) or size == own for size, own in sizes)
    if array.ndim != len(shape) or not all(free):
        refuse(f"{name} must be {shape}, got {list(array.shape)}")
    if not 1 <= len(array) <= MOST_ROWS:
        refuse(f"{name} must have 1 to {MOST_ROWS} rows, got {len(array)}")
    with np.errstate(over="ignore"):  # what is too large is refused below
        array = array.astype(kind)
    if kind.kind == "f" and not np.isfinite(array).all():
        refuse(f"{name} must be finite numbers that {kind.name} can hold")
    return array


def refuse(why: str) -> NoReturn:
    """422: the request is understood, and its content is wrong."""
    raise HTTPException(status_code=422, detail=why)

"""The 16 corruptions of CIFAR-C at 5 intensities.

They are written by hand: the official script needs ImageMagick and works image by image on a CPU.
These work on whole batches on every device, and tests hold them to OpenCV, scikit-image and SciPy.
"""

from stochens_lab.data.corruptions.apply import corrupt
from stochens_lab.data.corruptions.published import CORRUPTIONS, INTENSITIES

__all__ = ["CORRUPTIONS", "INTENSITIES", "corrupt"]

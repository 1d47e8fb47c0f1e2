"""`tp.linalg`: programs over the joined matrix, each a short file over what `rel.matrix()` gives."""

from tablepuppet.algebra.linalg.glm import GLM, glm
from tablepuppet.algebra.linalg.kmeans import KMeans, kmeans
from tablepuppet.algebra.linalg.lm import LM, lm
from tablepuppet.algebra.linalg.pca import PCA, pca

__all__ = ["GLM", "LM", "PCA", "KMeans", "glm", "kmeans", "lm", "pca"]

"""`tp.linalg`: programs over the joined matrix, each a short file over what `rel.matrix()` gives."""

from tablepuppet.algebra.linalg.cor import cor
from tablepuppet.algebra.linalg.glm import GLM, glm
from tablepuppet.algebra.linalg.kmeans import KMeans, kmeans
from tablepuppet.algebra.linalg.l2svm import L2SVM, l2svm
from tablepuppet.algebra.linalg.lasso import Lasso, LassoPath, lasso
from tablepuppet.algebra.linalg.lm import LM, lm
from tablepuppet.algebra.linalg.multilogreg import MultiLogReg, multilogreg
from tablepuppet.algebra.linalg.naive_bayes import NaiveBayes, naive_bayes
from tablepuppet.algebra.linalg.pca import PCA, pca
from tablepuppet.algebra.linalg.steplm import StepLM, steplm

__all__ = [
    "GLM", "L2SVM", "LM", "PCA", "KMeans", "Lasso", "LassoPath", "MultiLogReg", "NaiveBayes", "StepLM",
    "cor", "glm", "kmeans", "l2svm", "lasso", "lm", "multilogreg", "naive_bayes", "pca", "steplm",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__

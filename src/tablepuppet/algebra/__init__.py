"""The relation as a matrix that is never built: products, column sums and Gram matrices, without a label."""

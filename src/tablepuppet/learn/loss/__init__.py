"""What is minimised, as a function of scores: squared, logistic and softmax losses."""

"""One question, one Assessment: facts in, verdict and findings out."""

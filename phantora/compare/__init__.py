"""`phantora compare RUN`: a run against ASTRA-sim, or against a measured trace of the same job."""

"""`phantora view RUN`: hands a trace over to the Perfetto user interface in a browser."""

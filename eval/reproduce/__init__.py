"""The tables and figures of the paper, each measured here: `python -m eval.paper` runs them."""

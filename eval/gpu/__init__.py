"""What is run where a GPU is: a bundle to carry there, one script, and what becomes of its results here."""

"""The mixers, each a file; ``contextpool.nn.mixer`` has the table of them."""

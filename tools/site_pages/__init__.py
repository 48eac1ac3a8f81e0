"""Pages of the site that are generated, and the text of pages and docstrings as the site needs it."""

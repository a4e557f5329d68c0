"""What was found, told: on the terminal, in tables, and on a page; all words are in `templates/sentences.j2`."""

"""What was found, told: on the terminal, in tables, and on one page with pictures; all words are in `templates/sentences.j2`."""

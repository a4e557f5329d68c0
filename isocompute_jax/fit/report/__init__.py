"""What a reader gets: summary.json, CSV tables, text for the terminal, and report.html with sections and figures."""

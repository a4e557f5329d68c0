"""The whole playbook in one command: base model, curation, sweep, frontier, report."""

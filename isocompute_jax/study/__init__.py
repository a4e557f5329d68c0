"""The whole playbook in one command: base model, curation, sweep, answer, report."""

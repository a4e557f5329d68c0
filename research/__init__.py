"""What was found out with the library; not part of the package. `make gallery` writes docs/findings.md."""

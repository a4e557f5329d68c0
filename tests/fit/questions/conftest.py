"""The macros that put answers into words."""

import jinja2
import pytest


@pytest.fixture(scope="session")
def sentences():
    loader = jinja2.PackageLoader("isocompute_jax.fit.report")
    return jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined).get_template("questions.j2").module

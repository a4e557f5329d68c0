"""What tests of the service share: coroutines as tests, certificates, and servers that are asked often."""

import inspect
import subprocess

import pytest

from tests.service.builders import run


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Tests that are coroutines run on an event loop of their own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture
def short_polls(monkeypatch):
    """The fleet's rules are the same at any pace."""
    from isocompute_jax.service.client import dispatch, member

    monkeypatch.setattr(member, "POLL_S", 0.05)
    monkeypatch.setattr(dispatch, "WATCH_S", 0.05)
    monkeypatch.setattr(dispatch, "PATIENCE_S", 0.0)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """A folder with two authorities, and certificates: all but the stranger's are signed by `ca`."""
    folder = tmp_path_factory.mktemp("certificates")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    for name in ("ca", "other"):
        out = ("-keyout", f"{name}.key", "-out", f"{name}.pem")
        openssl("req", "-x509", *key, "-days", "2", "-subj", f"/CN={name}", *out)
    (folder / "here").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    (folder / "there").write_text("subjectAltName=DNS:elsewhere.example")
    for name, authority, place, days in (
        ("server", "ca", "here", "2"),
        ("client", "ca", "here", "2"),
        ("stranger", "other", "here", "2"),
        ("expired", "ca", "here", "-1"),
        ("elsewhere", "ca", "there", "2"),
    ):
        openssl("req", *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        by = ("-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial", "-extfile", place)
        openssl("x509", "-req", "-in", f"{name}.csr", *by, "-days", days, "-out", f"{name}.pem")
    return folder

"""Where secrets may stand, and what is said of those that stand elsewhere."""

import os

import pytest

from isocompute_jax.records import tokens
from isocompute_jax.records.errors import InputError
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.service.server.server import ServerConfig
from isocompute_jax.tasks import RewardConfig
from isocompute_jax.tasks.graders.service import Service

SECRET = "correct-horse-battery"


def test_a_token_is_in_a_file_or_in_the_environment(tmp_path, monkeypatch):
    path = tmp_path / "token"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    for config in (ServiceConfig(), ServerConfig()):
        assert config.token() == ""
    monkeypatch.setenv("ISOCOMPUTE_TOKEN", " of the environment ")
    for config in (ServiceConfig(), ServerConfig()):
        assert config.token() == "of the environment"
    for config in (ServiceConfig(token_file=str(path)), ServerConfig(token_file=str(path))):
        assert config.token() == SECRET  # a file goes first


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o602, 0o777])
def test_a_token_that_others_can_read_or_change_is_refused(tmp_path, mode):
    path = tmp_path / "token"
    path.write_text(SECRET)
    path.chmod(mode)
    for config in (ServiceConfig(token_file=str(path)), ServerConfig(token_file=str(path))):
        with pytest.raises(InputError, match=rf"token_file.*{mode:04o}.*chmod 600 it.*ISOCOMPUTE_TOKEN") as error:
            config.token()
        assert SECRET not in str(error.value)
    for mode in (0o600, 0o400):
        path.chmod(mode)
        assert ServerConfig(token_file=str(path)).token() == SECRET


@pytest.mark.parametrize(
    ("mode", "right"), [(0o440, True), (0o400, True), (0o640, True), (0o444, False), (0o660, False)]
)
def test_roots_secret_may_be_read_by_the_group_of_a_container(tmp_path, monkeypatch, mode, right):
    """As Kubernetes mounts secrets for pods with `fsGroup`: root's file, and its group is the pod's."""
    path = tmp_path / "token"
    path.write_text(SECRET)
    path.chmod(mode)
    found = os.stat(path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "fstat", lambda _: os.stat_result((found.st_mode, *found[1:4], 0, *found[5:])))
    if right:
        assert ServerConfig(token_file=str(path)).token() == SECRET
    else:
        with pytest.raises(InputError, match="chmod 600"):
            ServerConfig(token_file=str(path)).token()


def test_a_token_in_place_of_its_file_is_not_repeated(monkeypatch):
    for config in (ServiceConfig(endpoints="a:1", token_file=SECRET), ServerConfig(token_file=SECRET)):
        with pytest.raises(InputError, match="names no file here; it is not repeated") as error:
            config.token()
        assert SECRET not in str(error.value) and "token_file" in str(error.value)
    monkeypatch.setenv("ISOCOMPUTE_TOKEN", "two\nlines")
    with pytest.raises(InputError, match="ISOCOMPUTE_TOKEN: must hold one line") as error:
        ServerConfig().token()
    assert "lines" not in str(error.value).replace("one line", "")


@pytest.mark.parametrize(
    "url",
    [
        f"https://user:{SECRET}@judge:8000/grade",
        f"https://{SECRET}@judge/grade",
        f"https://judge/grade?api_key={SECRET}",
        f"https://judge/grade?model=m&access-token={SECRET}",
        f"http://other/grade,https://judge/grade?Signature={SECRET}",
    ],
)
def test_addresses_with_secrets_are_refused(url):
    for make in (lambda: RewardConfig(function=url), lambda: RewardConfig(tasks={"math": url}), lambda: Service(url)):
        with pytest.raises(InputError, match="the address at judge has a secret in it") as error:
            make()
        assert SECRET not in str(error.value) and "ISOCOMPUTE_REWARD_TOKEN" in str(error.value)


@pytest.mark.parametrize("url", ["http://judge:8000/grade", "https://judge/grade?model=m&top=3", "http://[::1]:80/"])
def test_plain_addresses_are_taken(url):
    tokens.check_url(url, "config.reward.function")
    assert RewardConfig(function=url).function == url
